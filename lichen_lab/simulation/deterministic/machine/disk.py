"""A simulated disk: real files in a folder in memory, and a record of what a power cut could undo.

What the seam (:mod:`runtime.storage.disk`) writes is applied at once, as the page cache does. Until it is
synced, the
disk remembers what was there before: a power cut loses un-synced data, tears it (a prefix stays) or keeps it,
and undoes un-synced names (files made, renamed, removed) from some point on, folder by folder: POSIX promises
no more. SQLite is taken at its word: a commit with ``synchronous=FULL`` is durable; of a file that is not
synced at commits, a power cut takes the last ones.
"""

import asyncio
import errno
import os
import random
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final, TypeVar

from lichen_lab.simulation.deterministic.machine.power_cut import (
    Name,
    copy_files,
    files_below,
    is_new,
    lose,
    mark_old,
)
from lichen_lab.simulation.deterministic.machine.process_life import LIFE, PowerCut, ProcessLife
from runtime.storage.disk import DISK, Disk

__all__ = ["PowerCut", "SimDisk", "memory_folder", "start"]

T = TypeVar("T")
_SQLITE: Final = {
    errno.ENOSPC: (sqlite3.SQLITE_FULL, "database or disk is full"),
    errno.EROFS: (sqlite3.SQLITE_READONLY, "attempt to write a readonly database"),
}


class SimDisk(Disk):
    """The disk of one life of a node. Make a new one, on the folder that :meth:`freeze` filled, for the next.

    Args:
        root: the node's folder; all that it writes lies below.
        seed: decides what a power cut leaves.
        life: whose moments these operations are; None: it never dies.
        honours_sync: False is a disk (or code) that does not sync, for mutation checks.
    """

    def __init__(
        self, root: Path, seed: int | str = 0, *, life: ProcessLife | None = None, honours_sync: bool = True
    ) -> None:
        super().__init__()
        self.root = root
        self.life = life
        self.trouble = 0
        """While it is an ``errno``, operations that write fail with it (ENOSPC, EROFS, EIO)."""
        self.operations = 0
        self._honours_sync = honours_sync
        self._random = random.Random(f"disk {seed}")  # noqa: S311 - a seed, not a secret
        self._unsynced: dict[Path, bytes] = {}  # file -> what a power cut can bring back instead
        self._names: dict[Path, list[Name]] = {}  # folder -> changes of names since its last sync
        self._seam: set[Path] = set()  # files that were written through the seam
        self._full: set[Path] = set()  # SQLite files whose commits are synced
        self._temporary = 0
        root.mkdir(parents=True, exist_ok=True)
        mark_old(root)

    @property
    def _dead(self) -> bool:
        return self.life is not None and self.life.dead

    def _begin(self, what: str, path: Path, *, writes: bool = True) -> bool:
        """Count an operation. False in a dead life: do it, and record nothing."""
        if self._dead:
            return False
        self.operations += 1
        if self.life is not None:
            self.life.moment(f"{what} {path.name}")
        if self.trouble and writes:
            raise OSError(self.trouble, os.strerror(self.trouble), str(path))
        return True

    def _before(self, path: Path) -> bytes | None:
        """Content of a file after a power cut; None if it is gone."""
        try:
            return self._unsynced[path] if path in self._unsynced else path.read_bytes()
        except FileNotFoundError:
            return None

    def _changed(self, path: Path, before: bytes | None) -> None:
        if before is None:
            self._names.setdefault(path.parent, []).append(Name("create", path))
        self._seam.add(path)
        self._unsynced.setdefault(path, before or b"")
        os.utime(path, ns=(self.operations + 1, self.operations + 1))  # some code sorts files by age

    def temporary(self, folder: Path) -> Path:
        """The same names in each run, other names in each life."""
        self._temporary += 1
        life = 0 if self.life is None else self.life.number
        return folder / f".tmp-{life}-{self._temporary:06}"

    def mkdir(self, folder: Path) -> None:
        """See the base class."""
        if not self._begin("mkdir", folder):
            return super().mkdir(folder)
        new = not folder.exists()
        super().mkdir(folder)
        if new:
            self._names.setdefault(folder.parent, []).append(Name("mkdir", folder))
        return None

    def write(self, path: Path, data: bytes, *, sync: bool, fresh: bool = False) -> None:
        """Two moments: before, and written but not synced yet. A full disk takes half of the data."""
        if self._dead:
            return super().write(path, data, sync=False, fresh=fresh)
        before = self._before(path)
        if self.trouble == errno.ENOSPC and before is None:
            super().write(path, data[: len(data) // 2], sync=False, fresh=fresh)
            self._changed(path, None)
        self._begin("write", path)
        super().write(path, data, sync=False, fresh=fresh)
        self._changed(path, before)
        if sync:
            self._begin("sync", path)
            self.counters.syncs += 1
            if self._honours_sync:
                self._unsynced.pop(path, None)
        return None

    def write_at(self, path: Path, data: bytes, offset: int) -> None:
        """See the base class."""
        if not self._begin("write at", path):
            return super().write_at(path, data, offset)
        before = self._before(path)
        super().write_at(path, data, offset)
        self._changed(path, before)
        return None

    def replace(self, old: Path, new: Path) -> None:
        """See the base class. Un-synced data is as un-synced under the new name."""
        if not self._begin("rename", new):
            return super().replace(old, new)
        before = None if new.is_dir() else self._before(new)
        if old not in self._seam and old.is_file() and is_new(old):
            self._unsynced.setdefault(old, b"")  # not written through the seam
        super().replace(old, new)
        self._names.setdefault(new.parent, []).append(Name("replace", new, old, before))
        self._seam.add(new)
        self._unsynced.pop(new, None)
        if old in self._unsynced:
            self._unsynced[new] = self._unsynced.pop(old)
        for file in [f for f in self._unsynced if old in f.parents]:  # a folder was renamed
            self._unsynced[new / file.relative_to(old)] = self._unsynced.pop(file)
        self._seam |= {new / file.relative_to(old) for file in self._seam if old in file.parents}
        if old in self._names:
            self._names[new] = [name.moved(old, new) for name in self._names.pop(old)]
        return None

    def unlink(self, path: Path) -> None:
        """See the base class."""
        if not self._begin("remove", path, writes=self.trouble == errno.EROFS):
            return super().unlink(path)
        before = self._before(path)
        super().unlink(path)
        if before is not None:
            self._names.setdefault(path.parent, []).append(Name("unlink", path, content=before))
            self._unsynced.pop(path, None)
        return None

    def rmtree(self, folder: Path, *, ignore_errors: bool = False) -> None:
        """See the base class."""
        if not folder.exists() and ignore_errors:
            return
        try:
            remember = self._begin("remove tree", folder, writes=self.trouble == errno.EROFS)
        except OSError:
            if not ignore_errors:
                raise
            return
        files = {file: self._before(file) or b"" for file in files_below(folder)} if remember else {}
        super().rmtree(folder, ignore_errors=ignore_errors)
        if remember:
            self._forget_below(folder)
            removed = self._names.setdefault(folder.parent, [])
            removed += [Name("unlink", file, content=content) for file, content in files.items()]

    def _forget_below(self, folder: Path) -> None:
        for path in [p for p in self._unsynced if folder in p.parents]:
            del self._unsynced[path]
        for path in [p for p in self._names if p == folder or folder in p.parents]:
            del self._names[path]

    def sync(self, path: Path) -> None:
        """See the base class."""
        if self._begin("sync", path, writes=False):
            self.counters.syncs += 1
            if self._honours_sync:
                self._seam.add(path)
                self._unsynced.pop(path, None)

    def sync_folder(self, folder: Path) -> None:
        """See the base class."""
        if self._begin("sync folder", folder, writes=False):
            self.counters.syncs += 1
            if self._honours_sync:
                self._names.pop(folder, None)

    def before_commit(self, path: Path) -> None:
        """See the base class. A full or read-only disk refuses, in SQLite's words."""
        if self._dead:
            return
        self.operations += 1
        if self.life is not None:
            self.life.moment(f"before commit {path.name}")
        if self.trouble:
            code, words = _SQLITE.get(self.trouble, (sqlite3.SQLITE_IOERR, "disk I/O error"))
            error = sqlite3.OperationalError(words)
            error.sqlite_errorcode = code
            raise error

    def after_commit(self, path: Path, *, synced: bool = True) -> None:
        """See the base class."""
        super().after_commit(path)
        if synced:
            self._full.add(path)
        if self.life is not None:
            self.life.moment(f"after commit {path.name}")

    def bytes_to_device(self) -> int:
        """Not the kernel's count, which differs from run to run."""
        return 0

    def freeze(self, after: Path, *, power: bool) -> None:
        """Copy what the next life will find to ``after``, which is not there yet.

        Args:
            after: the next life's root.
            power: the power was cut; else the process was killed, and the system writes what it holds (it is
                taken as written before the next cut).
        """
        copy_files(self.root, after)
        if power:
            touched = {file for file in files_below(self.root) if is_new(file)}
            lose(
                self._random,
                self.root,
                after,
                unsynced=self._unsynced,
                names=self._names,
                foreign=sorted(touched - self._seam),
                synced_databases=self._full,
            )

    def is_durable(self, path: Path) -> bool:
        """Whether a file would survive a power cut now, with its name and content."""
        if not path.is_file() or path in self._unsynced:
            return False
        while path not in (self.root, path.parent):
            if any(name.path == path for name in self._names.get(path.parent, ())):
                return False
            path = path.parent
        return True

    def rot(self, path: Path) -> bool:
        """Flip one bit of a file; False where it is empty or gone."""
        try:
            data = bytearray(path.read_bytes())
        except OSError:
            return False
        if not data:
            return False
        data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        path.write_bytes(data)
        return True


def memory_folder(prefix: str = "lichen-world-") -> "tempfile.TemporaryDirectory[str]":
    """A folder for simulations, in memory if the system has one."""
    shm = Path("/dev/shm")  # noqa: S108 - a folder with a random name is made in it
    return tempfile.TemporaryDirectory(prefix=prefix, dir=shm if os.access(shm, os.W_OK) else None)


def start(
    life: ProcessLife, disk: Disk, main: Callable[[], Coroutine[Any, Any, T]], *, name: str | None = None
) -> "asyncio.Task[T]":
    """Begin a life: a task in which :data:`LIFE` and the disk are this life's. It is cancelled at its end."""
    context = copy_context()
    context.run(LIFE.set, life)
    context.run(DISK.set, disk)
    loop = asyncio.get_running_loop()
    task = loop.create_task(main(), name=name or f"{life.node}/{life.number}", context=context)
    life.cancel_at_end(task)
    return task
