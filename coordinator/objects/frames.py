"""Files of accepted updates: in a folder, and in a store that several machines share.

A round's files are named by their content, or mark a frame as void. The fold, its child processes and the
check after a start read them from this machine's folder.
"""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from coordinator.objects.contract import ObjectStore
from runtime.storage.files import disk_errors, make_folder, remove, remove_tree, write_atomic, write_unsynced

PREFIX: Final = "frames"


class FolderFrames:
    """Files in a folder alone. Synchronous and thread-safe: call it in a thread.

    Args:
        root: has a folder for each round.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, round_: int, name: str, data: bytes) -> None:
        """Write a file durably.

        Raises:
            Transient: it is not stored.
        """
        write_atomic(self.root / str(round_) / name, data)

    def remove(self, round_: int, names: Iterable[str]) -> None:
        """Remove files, if they are there."""
        for name in names:
            file = self.root / str(round_) / name
            if file.exists():
                remove(file)

    def fetch(self, round_: int, names: Iterable[str]) -> None:
        """Bring files into the round's folder: they are there."""

    def fetch_round(self, round_: int) -> None:
        """The same for all files of a round."""

    def rounds(self) -> list[int]:
        """The rounds with files."""
        return sorted(int(folder.name) for folder in _rounds(self.root))

    def forget_before(self, round_: int) -> None:
        """Remove the files of earlier rounds."""
        for folder in _before(self.root, round_):
            remove_tree(folder)


class SharedFrames:
    """Files in a shared store; the folder has copies, which are not synced, so each process has its own.

    Args:
        objects: the store.
        root: the folder.
        copies: also copy what this process writes; not in a process that never folds.
    """

    def __init__(self, objects: ObjectStore, root: Path, *, copies: bool = True) -> None:
        self.root = root
        self._objects = objects
        self._copies = copies
        self._lock = threading.Lock()
        remove_tree(root)
        with disk_errors(root):
            make_folder(root)

    def write(self, round_: int, name: str, data: bytes) -> None:
        """See :class:`FolderFrames`."""
        self._objects.put(_key(round_, name), data)
        if self._copies:
            self._copy(round_, name, data)

    def _copy(self, round_: int, name: str, data: bytes) -> None:
        file = self.root / str(round_) / name
        with disk_errors(file):
            write_unsynced(file, data)

    def remove(self, round_: int, names: Iterable[str]) -> None:
        """See :class:`FolderFrames`."""
        known = list(names)
        self._objects.remove(_key(round_, name) for name in known)
        for name in known:
            remove(self.root / str(round_) / name)

    def fetch(self, round_: int, names: Iterable[str]) -> None:
        """See :class:`FolderFrames`."""
        with self._lock:  # one at a time: bounds the memory
            for name in names:
                if not (self.root / str(round_) / name).is_file():
                    self._fetch(round_, name)

    def _fetch(self, round_: int, name: str) -> None:
        try:
            data = self._objects.get(_key(round_, name))
        except KeyError:
            return
        self._copy(round_, name, data)

    def fetch_round(self, round_: int) -> None:
        """See :class:`FolderFrames`."""
        found = sorted(self._objects.below(f"{PREFIX}/{round_}"), key=lambda one: (one.modified, one.key))
        self.fetch(round_, [one.key.rpartition("/")[2] for one in found])

    def rounds(self) -> list[int]:
        """See :class:`FolderFrames`."""
        return sorted(int(name) for name in self._objects.folders(PREFIX) if name.isdecimal())

    def forget_before(self, round_: int) -> None:
        """See :class:`FolderFrames`."""
        for old in self.rounds():
            if old < round_:
                self._objects.remove_below(f"{PREFIX}/{old}")
        for folder in _before(self.root, round_):
            remove_tree(folder)


FrameStore = FolderFrames | SharedFrames


def _key(round_: int, name: str) -> str:
    return f"{PREFIX}/{round_}/{name}"


def _rounds(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [folder for folder in root.iterdir() if folder.name.isdecimal()]


def _before(root: Path, round_: int) -> list[Path]:
    return [folder for folder in _rounds(root) if int(folder.name) < round_]
