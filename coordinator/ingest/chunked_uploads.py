"""Large updates in chunks: only for an announced pointer, with a quota for each device and a cap for all.

Partial uploads are stored in a folder for each round (``uploads/<round>/``), apart from served blobs, and
removed with it. A chunk that is out of order, repeated, late or unexpected does no harm.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import Reason, Refused, Transient
from protocol.frames.chunks import chunk_count
from protocol.messages import BlobPointer, Want
from runtime.storage.blob_store import BlobStore, Partial
from runtime.storage.files import remove, remove_tree

_PER_DEVICE: Final = 2
_RANGES: Final = 64
IDLE_S: Final = 60.0
"""If all room is reserved, an upload that has been idle for this long is dropped for a new one."""


@dataclass
class _Upload:
    pointer: BlobPointer
    partial: Partial
    touched: float
    """Monotonic seconds, when its last chunk came."""
    complete: bool = False
    """Every chunk is here, and a thread computes its digest."""


class Uploads:
    """Uploads in progress. Synchronous (writes files) and thread-safe; none waits while another is hashed.

    Args:
        root: folder of partial uploads.
        per_device_bytes: limit for all uploads of one device.
        total_bytes: limit for all uploads.
        now: monotonic seconds.
    """

    def __init__(
        self,
        root: Path,
        per_device_bytes: int,
        total_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._per_device_bytes = per_device_bytes
        self._total_bytes = total_bytes
        self._now = now
        self._round: int | None = None
        self._open: dict[tuple[str, str], _Upload] = {}
        self._lock = threading.Lock()

    @property
    def announced_bytes(self) -> int:
        """Bytes that all announced uploads will take on disk."""
        return sum(upload.pointer.blob.size for upload in list(self._open.values()))

    def enter_round(self, round_: int) -> None:
        """Drop the uploads of earlier rounds, in memory and on disk."""
        with self._lock:
            if self._round is not None and round_ <= self._round:  # a worker that was slow to come here
                return
            self._open.clear()
            if self._root.is_dir():
                for folder in self._root.iterdir():
                    if folder.name != str(round_):
                        remove_tree(folder)
            self._round = round_

    def announce(self, device: str, pointer: BlobPointer, max_bytes: int) -> Want | bytes:
        """Register the pointer to an upload.

        Returns:
            What is missing; or the whole update, if its last chunk is already here.

        Raises:
            Refused: too large, or no room.
            Transient: another thread verifies this very update.
        """
        key = (device, pointer.blob.digest)
        with self._lock:
            known = self._open.get(key)
            if known is not None and known.complete:
                raise Transient(f"the update {key[1][:12]} of {device} is being verified")
            if known is None or known.pointer != pointer:
                self._open.pop(key, None)
                self._make_room(device, pointer, max_bytes)
                known = self._begin(device, pointer)
            known.complete = known.partial.complete
            if not known.complete:
                return _want(known)
        try:
            return self._finish(key, known)
        except Refused:  # a power cut left a map that claims more than is stored: start again
            with self._lock:
                return _want(self._begin(device, pointer))

    def _begin(self, device: str, pointer: BlobPointer) -> _Upload:
        # A folder for each device: no device can damage or finish another's upload.
        folder = self._root / str(pointer.round) / device
        partial = BlobStore(folder).partial(pointer.blob, pointer.chunk_bytes)
        upload = _Upload(pointer, partial, self._now())
        self._open[device, pointer.blob.digest] = upload
        # Only open uploads count against the quotas; those of an earlier process are removed.
        for file in (folder / "partial").iterdir():
            if (device, file.name.split(".")[0]) not in self._open:
                remove(file)
        return upload

    def _make_room(self, device: str, pointer: BlobPointer, max_bytes: int) -> None:
        size = pointer.blob.size
        if size > min(max_bytes, self._per_device_bytes):
            most = min(max_bytes, self._per_device_bytes)
            raise Refused(
                Reason.TOO_LARGE, f"blob.size: an update of {size} bytes; this model's take at most {most}"
            )
        if chunk_count(size, pointer.chunk_bytes) == 0:
            raise Refused(Reason.MALFORMED, "blob.size: an update cannot be empty")
        mine = [key for key, upload in self._open.items() if key[0] == device and not upload.complete]
        while mine and (len(mine) >= _PER_DEVICE or self._bytes_of(mine) + size > self._per_device_bytes):
            self._give_up(mine.pop(0))
        self._evict(size)
        if self.announced_bytes + size > self._total_bytes:
            raise Refused(
                Reason.FULL, f"uploads.total_bytes: {self._total_bytes} bytes are announced already"
            )

    def _evict(self, size: int) -> None:
        """Make room by dropping idle uploads, the longest idle first."""
        waiting = [key for key, upload in self._open.items() if not upload.complete]
        by_age = sorted(waiting, key=lambda key: self._open[key].touched)
        for key in by_age:
            idle_s = self._now() - self._open[key].touched
            if self.announced_bytes + size <= self._total_bytes or idle_s < IDLE_S:
                return
            self._give_up(key)

    def _give_up(self, key: tuple[str, str]) -> None:
        """Drop an upload and its bytes."""
        self._open.pop(key).partial.discard()

    def _bytes_of(self, keys: list[tuple[str, str]]) -> int:
        return sum(self._open[key].pointer.blob.size for key in keys)

    def add(self, device: str, digest: str, index: int, data: bytes) -> bytes | None:
        """Store a chunk.

        Returns:
            The whole update if this was the last chunk; None if more are missing, or the upload was not
            announced.

        Raises:
            Refused: the chunk does not fit its pointer, or the whole has another digest (the upload starts
                again).
        """
        with self._lock:
            upload = self._open.get((device, digest))
            if upload is None or upload.complete:
                return None
            if upload.partial.add(index, data):
                upload.touched = self._now()
            upload.complete = upload.partial.complete
            if not upload.complete:
                return None
        return self._finish((device, digest), upload)

    def _finish(self, key: tuple[str, str], upload: _Upload) -> bytes:
        """The whole update; the device's folder is removed, with any other upload in it.

        It is read and hashed without the lock, so that other uploads go on meanwhile.
        """
        try:
            payload = upload.partial.verified()
        except BaseException:
            with self._lock:
                self._forget(key, upload)
            raise
        with self._lock:
            if self._forget(key, upload):
                for other in [other for other in self._open if other[0] == key[0]]:
                    del self._open[other]
                remove_tree(self._root / str(upload.pointer.round) / key[0])
        return payload

    def _forget(self, key: tuple[str, str], upload: _Upload) -> bool:
        """False if its round is over and its uploads were dropped."""
        if self._open.get(key) is not upload:
            return False
        del self._open[key]
        return True

    def expects(self, device: str, digest: str) -> bool:
        """Whether chunks of that upload are expected."""
        return (device, digest) in self._open


def _want(upload: _Upload) -> Want:
    return Want(digest=upload.pointer.blob.digest, missing=tuple(upload.partial.missing(_RANGES)))
