"""Blobs of a bucket on this machine's disk, bounded in bytes; lost at a restart."""

import contextlib
import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import LichenError, Reason, Refused
from runtime.storage.disk import DISK
from runtime.storage.files import disk_errors, make_folder, remove, remove_tree, rename, write_at
from runtime.storage.folder_lock import FolderLock, is_locked

log = structlog.get_logger(__name__)

_YOUNG_S: Final = 60.0
"""A lock that is not older may be of a process that is about to take it."""


class BlobCache:
    """The blobs that were used last. Thread-safe.

    Nothing is synced: a power cut may tear a file, so no later process uses the folder.

    Args:
        root: a folder of its own.
        max_bytes: of all blobs in it.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """The blobs in it, the one used longest ago first."""
        self._lock = threading.Lock()
        remove_tree(root)
        with disk_errors(root):
            make_folder(root)

    def has(self, digest: str) -> bool:
        """Whether it is in the cache."""
        with self._lock:
            return digest in self._sizes

    def takes(self, size: int) -> bool:
        """Whether a blob of that size may be put in it: at most a quarter of all."""
        return size <= self._max_bytes // 4

    def read(self, digest: str, start: int, size: int) -> bytes | None:
        """A part of a blob; None: it is not in the cache."""
        with self._lock:
            if digest not in self._sizes:
                return None
            self._sizes.move_to_end(digest)
        try:
            with (self._root / digest).open("rb") as file:
                file.seek(start)
                return file.read(size)
        except OSError:  # removed meanwhile, or the disk fails: the bucket has it
            self.remove(digest)
            return None

    def add(self, digest: str, size: int, parts: Iterable[bytes]) -> bool:
        """Put a blob in, whose bytes come in parts.

        Returns:
            Whether it is in the cache; not if it is too large, or the disk is full.

        Raises:
            Refused: WRONG_DIGEST, the bytes are not the blob's.
            LichenError: the store of the parts failed.
            KeyError: the store has no such blob.
        """
        if not self.takes(size) or self.has(digest):
            return self.has(digest)
        part = DISK.get().temporary(self._root)
        try:
            _write(part, digest, size, parts)
            self._make_room(size)
            rename(part, self._root / digest)
        except OSError as error:
            log.warning("blob_not_cached", digest=digest, why=str(error))
            return False
        finally:
            with contextlib.suppress(OSError, LichenError):
                remove(part)
        with self._lock:
            self._sizes[digest] = size
        return True

    def _make_room(self, size: int) -> None:
        while True:
            with self._lock:
                if not self._sizes or sum(self._sizes.values()) + size <= self._max_bytes:
                    return
                oldest = next(iter(self._sizes))
            self.remove(oldest)

    def remove(self, digest: str) -> None:
        """Remove a blob, if it is here."""
        with self._lock:
            self._sizes.pop(digest, None)
        with contextlib.suppress(OSError, LichenError):
            remove(self._root / digest)


def folder_of_process(root: Path) -> tuple[Path, FolderLock]:
    """A cache folder of this process alone; those of processes that have ended are removed.

    Args:
        root: the folder of all caches.

    Returns:
        The folder, and the lock that shows that its process lives.
    """
    with disk_errors(root):
        make_folder(root)
        for lock in root.glob("*.lock"):
            old = time.time() - lock.stat().st_mtime > _YOUNG_S
            if old and is_locked(lock) is False:
                remove_tree(lock.with_suffix(""))
                remove(lock)
    mine = root / secrets.token_hex(6)
    return mine, FolderLock(mine.with_suffix(".lock"), "process")


def _write(file: Path, digest: str, size: int, parts: Iterable[bytes]) -> None:
    at, mark = 0, hashlib.sha256()
    write_at(file, b"", 0)
    for data in parts:
        if at + len(data) > size:  # without end
            break
        write_at(file, data, at)
        mark.update(data)
        at += len(data)
    if at != size or mark.hexdigest() != digest:
        raise Refused(Reason.WRONG_DIGEST, f"the store returns other bytes as blob {digest}")
