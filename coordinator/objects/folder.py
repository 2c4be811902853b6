"""Objects as files below a folder, which several processes of one machine may share."""

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from coordinator.objects.contract import FoundObject
from runtime.storage.files import (
    disk_errors,
    make_folder,
    remove,
    remove_tree,
    write_atomic,
    write_unsynced,
)

_KEY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*\Z")
_PART_BYTES: Final = 1024 * 1024


class FolderObjects:
    """An :class:`~coordinator.objects.contract.ObjectStore` on the disk.

    Args:
        root: the folder; created when it is needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def trouble(self) -> tuple[float, str] | None:
        """None: what a disk lacks is seen by others."""
        return None

    def path(self, key: str) -> Path:
        """The file of an object, whether it exists or not.

        Raises:
            ValueError: not a key.
        """
        if not _KEY.match(key):
            raise ValueError(f"{key!r} is not the key of an object")
        return self._root / key

    def put(self, key: str, data: bytes, *, absent: bool = True, durable: bool = True) -> bool:
        """See :class:`ObjectStore`; ``durable``: synced to the disk."""
        path = self.path(key)
        if absent and path.is_file():
            return False
        if durable:
            write_atomic(path, data)
        else:
            with disk_errors(path):
                write_unsynced(path, data)
        return True

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """See :class:`ObjectStore`."""
        with self._opened(key) as file:
            file.seek(start)
            return file.read(-1 if size is None else size)

    def stream(self, key: str) -> Iterator[bytes]:
        """See :class:`ObjectStore`."""
        with self._opened(key) as file:
            while part := file.read(_PART_BYTES):
                yield part

    @contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO]:
        path = self.path(key)
        with disk_errors(path):
            try:
                file = path.open("rb")
            except (FileNotFoundError, NotADirectoryError):
                raise KeyError(f"no object {key}") from None
            with file:
                yield file

    def head(self, key: str) -> FoundObject | None:
        """See :class:`ObjectStore`."""
        try:
            info = self.path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FoundObject(key, info.st_size, info.st_mtime)

    def below(self, prefix: str) -> Iterator[FoundObject]:
        """See :class:`ObjectStore`; temporary files are left out."""
        yield from self._below(self.path(prefix.rstrip("/")), prefix.rstrip("/"))

    def _below(self, folder: Path, prefix: str) -> Iterator[FoundObject]:
        try:
            entries = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                key = f"{prefix}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    yield from self._below(folder / entry.name, key)
                elif not entry.name.startswith("."):
                    try:
                        info = entry.stat()
                    except FileNotFoundError:  # removed meanwhile
                        continue
                    yield FoundObject(key, info.st_size, info.st_mtime)

    def remove(self, keys: Iterable[str]) -> None:
        """See :class:`ObjectStore`. A power cut soon after may bring an object back."""
        for key in keys:
            remove(self.path(key))

    def remove_below(self, prefix: str) -> None:
        """See :class:`ObjectStore`; with their folder."""
        remove_tree(self.path(prefix))

    def folders(self, prefix: str) -> set[str]:
        """See :class:`ObjectStore`."""
        try:
            return {folder.name for folder in self.path(prefix).iterdir() if folder.is_dir()}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def now(self) -> float:
        """See :class:`ObjectStore`: this machine's clock."""
        return time.time()

    def url(self, key: str, seconds: float) -> str | None:  # noqa: ARG002 - a folder has no URL
        """None."""
        return None

    def check(self) -> None:
        """See :class:`ObjectStore`."""
        with disk_errors(self._root):
            make_folder(self._root)
