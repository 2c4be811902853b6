"""Content-addressed blobs on disk, and their partial downloads.

``<root>/<first two hex digits>/<digest>`` holds a blob, ``<root>/partial/<digest>.<chunk bytes>.part`` and
``.map`` a running download. Everything may be deleted at any time: blobs are downloaded again.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from protocol.errors import Reason, Refused
from protocol.frames.chunks import Assembly
from protocol.frames.frame import digest as digest_of
from protocol.messages import BlobRef
from runtime.storage.disk import TEMPORARY
from runtime.storage.files import (
    ROOM,
    disk_errors,
    link_or_copy,
    make_folder,
    remove,
    sync_folder,
    write_at,
    write_atomic,
    write_in_place,
)

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


def path_in(root: Path, digest: str) -> Path:
    """The path of a blob in the store at ``root``, whether it exists or not.

    Raises:
        ValueError: not a SHA-256 in lower-case hexadecimal.
    """
    if not _DIGEST.match(digest):
        raise ValueError(f"{digest!r} is not a digest")
    return root / digest[:2] / digest


class BlobStore:
    """Blobs below ``root``. Synchronous (call it through ``asyncio.to_thread``); one writing process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pinned: dict[str, frozenset[str]] = {}
        with disk_errors(root):
            make_folder(root)
            for stray in root.glob(f"*/{TEMPORARY}*"):  # the temporary file of a write that a crash cut off
                remove(stray)

    def path(self, digest: str) -> Path:
        """:func:`path_in` this store."""
        return path_in(self._root, digest)

    def has(self, digest: str) -> bool:
        """Whether it is here (not verified)."""
        return self.path(digest).is_file()

    def size(self, digest: str) -> int:
        """Bytes of a blob.

        Raises:
            KeyError: it is not here.
        """
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise KeyError(f"no blob {digest}") from None

    def put(self, data: bytes) -> BlobRef:
        """Store durably; storing the same bytes again costs nothing.

        Raises:
            Transient: no space left.
        """
        ref = BlobRef(digest=digest_of(data), size=len(data))
        path = self.path(ref.digest)
        if not (path.is_file() and path.stat().st_size == ref.size and path.read_bytes() == data):
            write_atomic(path, data)  # also over a damaged one
        return ref

    def adopt(self, ref: BlobRef, path: Path) -> bool:
        """Take over a blob from another store of this machine, verified.

        It is linked: its bytes are on the disk once, and each store counts its share. On a disk without links
        they are copied.

        Returns:
            False: ``path`` is not there, or is not this blob.

        Raises:
            Transient: no space left.
        """
        mine = self.path(ref.digest)
        try:
            with path.open("rb") as file:
                same = os.fstat(file.fileno()).st_size == ref.size
                if not same or hashlib.file_digest(file, "sha256").hexdigest() != ref.digest:
                    return False
        except OSError:
            return False
        with disk_errors(mine):
            try:
                link_or_copy(path, mine)
            except FileNotFoundError:  # removed meanwhile
                return False
        return True

    def get(self, digest: str) -> bytes:
        """A verified blob.

        Raises:
            KeyError: it is not here.
            Refused: WRONG_DIGEST, the file was damaged; it is removed, so that it can be downloaded again.
        """
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise KeyError(f"no blob {digest}") from None
        if digest_of(data) != digest:
            remove(path)
            raise Refused(Reason.WRONG_DIGEST, f"{path} was damaged and is removed")
        return data

    def read(self, digest: str, start: int, size: int) -> bytes:
        """A part of a blob, not verified.

        Raises:
            KeyError: it is not here.
        """
        try:
            with self.path(digest).open("rb") as file:
                file.seek(start)
                return file.read(size)
        except FileNotFoundError:
            raise KeyError(f"no blob {digest}") from None

    def read_chunk(self, digest: str, index: int, chunk_bytes: int) -> bytes:
        """One chunk, not verified: the receiver verifies the whole.

        Raises:
            KeyError: no such blob.
            Refused: MALFORMED, there is no chunk of that index.
        """
        try:
            with self.path(digest).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if index < 0 or chunk_bytes < 1 or index * chunk_bytes >= max(size, 1):
                    raise Refused(
                        Reason.MALFORMED,
                        f"blob {digest} of {size} bytes has no chunk {index} of {chunk_bytes} bytes",
                    )
                file.seek(index * chunk_bytes)
                return file.read(chunk_bytes)
        except FileNotFoundError:
            raise KeyError(f"no blob {digest}") from None

    def names(self) -> list[str]:
        """Digests of all blobs that are here (not verified), sorted."""
        return sorted(path.name for path in self._root.glob("??/*") if _DIGEST.match(path.name))

    def remove(self, digest: str) -> None:
        """Remove a blob and its partial download, if they are here."""
        for path in (self.path(digest), *(self._root / "partial").glob(f"{digest}.*")):
            remove(path)

    def partial(self, ref: BlobRef, chunk_bytes: int) -> "Partial":
        """Start a download, or continue one that an earlier process started."""
        return Partial(self, self._root / "partial", ref, chunk_bytes)

    def total_bytes(self) -> int:
        """Bytes on disk, partial downloads included; of a linked file its share."""
        return sum(size for _, size, _ in self._files())

    def pin(self, owner: str, digests: Iterable[str]) -> None:
        """Never remove these, as long as this owner names no others and this object lives."""
        self._pinned[owner] = frozenset(digests)

    def collect(self, keep: Iterable[str], max_bytes: int = 0) -> int:
        """Remove the oldest files that no digest in ``keep`` names until at most ``max_bytes`` are left.

        Returns:
            Bytes freed. Blobs in ``keep``, and those of :meth:`pin`, are never removed, even above
            ``max_bytes``.
        """
        kept = set(keep).union(*self._pinned.values())
        files = sorted(self._files(), key=lambda f: f[2])
        total = sum(size for _, size, _ in files)
        freed = 0
        for path, size, _ in files:
            if total - freed <= max_bytes:
                break
            if path.name.split(".")[0] not in kept:
                remove(path)
                freed += size
        return freed

    def make_room(self, keep: Iterable[str], wanted: int) -> int:
        """Remove the oldest blobs that are not in ``keep`` until so many more bytes fit on the disk.

        Returns:
            Bytes freed; 0 if there was room.
        """
        with disk_errors(self._root):
            lacking = wanted + ROOM - shutil.disk_usage(self._root).free
        return 0 if lacking <= 0 else self.collect(keep, max(0, self.total_bytes() - lacking))

    def _files(self) -> list[tuple[Path, int, float]]:
        found = []
        for path in self._root.glob("*/*"):
            if path.name.startswith(TEMPORARY):  # another thread is writing it
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                info = path.stat()
                found.append((path, -(-info.st_size // max(1, info.st_nlink)), info.st_mtime))
        return found


class Partial:
    """A download in chunks, in any order, that survives restarts.

    The map of chunks is written after their bytes, without a sync: if a power cut leaves a map that claims
    chunks that are not stored, the digest at the end reveals it and the download starts again.
    """

    def __init__(self, store: BlobStore, folder: Path, ref: BlobRef, chunk_bytes: int) -> None:
        self.ref = ref
        self.chunk_bytes = chunk_bytes
        self._store = store
        self._data = folder / f"{ref.digest}.{chunk_bytes}.part"
        self._map = self._data.with_suffix(".map")
        with disk_errors(folder):
            make_folder(folder)
            mine = (self._data.name, self._map.name)
            for name in os.listdir(folder):  # noqa: PTH208 - many uploads are here, Paths are slow
                if name.startswith(f"{ref.digest}.") and name not in mine:  # started with another chunk size
                    remove(folder / name)
        self._assembly = self._resume()

    def _resume(self) -> Assembly:
        try:
            bitmap = self._map.read_bytes()
            there = self._data.is_file()
        except FileNotFoundError:
            there = False
        if there:
            with contextlib.suppress(Refused, ValueError):  # a torn map: start again
                return Assembly.from_bytes(self.ref.size, self.chunk_bytes, bitmap)
        self.discard()
        return Assembly(self.ref.size, self.chunk_bytes)

    def discard(self) -> None:
        """Remove the received part; this download will not continue."""
        remove(self._map)
        remove(self._data)

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return self._assembly.complete

    def missing(self, limit: int = 64) -> tuple[tuple[int, int], ...]:
        """Ranges (first, last), inclusive, of chunks that are not here."""
        return self._assembly.missing(limit)

    def add(self, index: int, data: bytes) -> bool:
        """Store a chunk; False if it was here already.

        Raises:
            Refused: no such index, or a wrong length.
            Transient: no space left.
        """
        wanted = self._assembly.length_of(index)
        if len(data) != wanted:
            detail = f"chunk {index} of blob {self.ref.digest} has {len(data)} bytes, not {wanted}"
            raise Refused(Reason.MALFORMED, detail)
        if self._assembly.has(index):
            return False
        with disk_errors(self._data):
            write_at(self._data, data, index * self.chunk_bytes)
            # Only now: a chunk whose write failed is still missing.
            self._assembly.add(index, len(data))
            write_in_place(self._map, self._assembly.to_bytes())
        return True

    def finish(self) -> BlobRef:
        """Verify, sync and move into the store.

        Raises:
            Refused: WRONG_DIGEST; all chunks are removed and the download starts again.
            ValueError: it is not complete.
        """
        ref = self._store.put(self.verified())
        self.discard()
        sync_folder(self._data.parent)
        return ref

    def verified(self) -> bytes:
        """The whole content, for callers that store it elsewhere.

        Raises:
            Refused: WRONG_DIGEST; all chunks are removed and the download starts again.
            ValueError: it is not complete.
        """
        if not self.complete:
            raise ValueError(f"blob {self.ref.digest} is not complete")
        with disk_errors(self._data):
            data = self._data.read_bytes() if self.ref.size else b""
        if digest_of(data) != self.ref.digest:
            self.discard()
            self._assembly = Assembly(self.ref.size, self.chunk_bytes)
            raise Refused(
                Reason.WRONG_DIGEST,
                f"blob {self.ref.digest}: the chunks' SHA-256 differs; they are downloaded again",
            )
        return data
