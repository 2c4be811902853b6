"""Tensors that a method keeps on the device between rounds (its private tensors), one file a task."""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from models.contract import Tensors
from models.tensors import npz_bytes, read_npz
from protocol.errors import LichenError, Misconfigured
from runtime.storage.files import disk_errors, remove, write_atomic

_log = structlog.get_logger(__name__)


class PrivateTensors:
    """The files in one folder. Synchronous."""

    def __init__(self, folder: Path) -> None:
        self._folder = self.folder = folder
        self._lock = threading.Lock()

    def read(self, task: str) -> Tensors:
        """The tensors of a task; empty if there are none, or if the file was damaged."""
        path = self._path(task)
        if not path.exists():
            return {}
        try:
            return read_npz(path)
        except Misconfigured as error:
            _log.error("private_tensors_lost", detail="training begins without them", error=str(error))
            remove(path)
            return {}

    def read_some(self, task: str, names: Collection[str]) -> Tensors:
        """Those of the named tensors that exist; reads nothing else, and does not change the file.

        Raises:
            Misconfigured: the file is damaged.
        """
        path = self._path(task)
        return read_npz(path, names) if path.exists() else {}

    def revision(self, task: str) -> tuple[int, int, int] | None:
        """Changes with every write; None if there is no file. Costs one stat, no reading."""
        try:
            found = self._path(task).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def write(self, task: str, tensors: Tensors) -> None:
        """Replace the tensors of a task.

        Raises:
            Transient: the disk is full.
        """
        write_atomic(self._path(task), npz_bytes(tensors))

    @contextmanager
    def restored_on_error(self, task: str, by: type[Exception]) -> Iterator[None]:
        """Run a body that may write a task's tensors; an error of type ``by`` restores the former file.

        If restoring fails too, the new file stays.

        Raises:
            Transient, Misconfigured: the former file cannot be read.
        """
        with restored_on_error(self._path(task), self._lock, by):
            yield

    def _path(self, task: str) -> Path:
        return self._folder / f"{task}.npz"


@contextmanager
def restored_on_error(path: Path, lock: threading.Lock, by: type[Exception]) -> Iterator[None]:
    """Run a body that may write the file; an error of type ``by`` restores the former content.

    If restoring fails too, the new content stays.

    Raises:
        Transient, Misconfigured: the former content cannot be read.
    """
    with lock:  # a cancelled round may still be writing: it is undone first
        with disk_errors(path):
            before = path.read_bytes() if path.exists() else None
        try:
            yield
        except by:
            with suppress(LichenError, OSError):
                remove(path) if before is None else write_atomic(path, before)
            raise
