"""The one interface to the disk for every write whose order or survival matters.

SQLite writes by itself; :meth:`Disk.before_commit` and :meth:`Disk.after_commit` mark when it makes something
durable. A simulation installs another :class:`Disk`, for its own tasks and threads only.
"""

import os
import secrets
import shutil
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TEMPORARY: Final = ".tmp-"
"""How the name of a file begins that will be renamed."""


@dataclass
class DiskCounters:
    """Counts since the process started.

    Attributes:
        syncs: of files, folders, and of SQLite at each commit that syncs.
        bytes_written: through this interface; SQLite's own are not included.
        commits: of SQLite.
    """

    syncs: int = 0
    bytes_written: int = 0
    commits: int = 0


class Disk:
    """The operating system's disk. Every method raises ``OSError`` as the system does."""

    def __init__(self) -> None:
        self.counters = DiskCounters()

    def temporary(self, folder: Path) -> Path:
        """A name for a file that will be renamed; no other file in ``folder`` has it."""
        return folder / f"{TEMPORARY}{secrets.token_hex(6)}"

    def mkdir(self, folder: Path) -> None:
        """Create a folder unless it exists; durable after :meth:`sync_folder` of its parent."""
        folder.mkdir(exist_ok=True)

    def write(self, path: Path, data: bytes, *, sync: bool, fresh: bool = False) -> None:
        """Create a file (readable by its owner only) or overwrite it whole.

        Args:
            path: in an existing folder.
            data: the whole content.
            sync: on the disk when this returns; the file's name only after :meth:`sync_folder`.
            fresh: it must not exist yet.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | (os.O_EXCL if fresh else 0)
        handle = os.open(path, flags, 0o600)
        try:
            _write_all(handle, data)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        self.counters.syncs += sync
        self.counters.bytes_written += len(data)

    def write_at(self, path: Path, data: bytes, offset: int) -> None:
        """Write into a file, which is created if necessary; not synced."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _write_all(handle, data, offset)
        finally:
            os.close(handle)
        self.counters.bytes_written += len(data)

    def replace(self, old: Path, new: Path) -> None:
        """Rename, over an existing file too; durable after :meth:`sync_folder`."""
        os.replace(old, new)  # noqa: PTH105 - Path.replace is the same call; os.replace says that it is atomic

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name, which must be free; durable after :meth:`sync_folder`."""
        new.hardlink_to(old)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists; durable after :meth:`sync_folder`."""
        path.unlink(missing_ok=True)

    def rmtree(self, folder: Path, *, ignore_errors: bool = False) -> None:
        """Remove a folder and its content; a power cut may leave any part of it."""
        shutil.rmtree(folder, ignore_errors=ignore_errors)

    def sync_folder(self, folder: Path) -> None:
        """Make new names, renames and removals in ``folder`` durable."""
        self.sync(folder)

    def sync(self, path: Path) -> None:
        """Make the content of a file durable that another program wrote (SQLite's copy of a database)."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self.counters.syncs += 1

    def before_commit(self, path: Path) -> None:
        """A transaction of the SQLite file at ``path`` is about to become durable."""

    def after_commit(self, path: Path, *, synced: bool = True) -> None:  # noqa: ARG002 - a simulated disk uses it
        """It is committed, and durable if the file is opened with ``synchronous=FULL`` (``synced``)."""
        self.counters.commits += 1
        self.counters.syncs += synced

    def wear(self) -> dict[str, int]:
        """For status reports: commits, syncs, and all bytes that this process wrote to the disk.

        The bytes are the kernel's count of data for a storage device, with SQLite's pages; without child
        processes, and 0 if it does not count (folders in memory, systems other than Linux).
        """
        counters = self.counters
        return {"commits": counters.commits, "syncs": counters.syncs, "bytes": self.bytes_to_device()}

    def bytes_to_device(self) -> int:
        """See :meth:`wear`."""
        try:
            lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)


def _write_all(handle: int, data: bytes, offset: int = 0) -> None:
    """``write`` may accept less than it is given: if a disk fills up, or on a signal."""
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done


DISK: Final[ContextVar[Disk]] = ContextVar("lichen_disk", default=Disk())  # noqa: B039 - shared on purpose: it counts for the process
"""The disk of this task or thread (inherited by ``asyncio.to_thread``)."""
