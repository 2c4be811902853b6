"""What a method keeps on the device between rounds (its private tensors), one file a task."""

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
    """Files in one folder. Synchronous."""

    def __init__(self, folder: Path) -> None:
        self._folder = self.folder = folder
        self._lock = threading.Lock()

    def read(self, task: str) -> Tensors:
        """Those of a task; empty where there are none, or where the file was damaged."""
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
        """Some of a task's, as far as they are there; nothing else is read, and the file is left alone.

        Raises:
            Misconfigured: it is damaged.
        """
        path = self._path(task)
        return read_npz(path, names) if path.exists() else {}

    def revision(self, task: str) -> tuple[int, int, int] | None:
        """Another one after every write; None where there is nothing. One look at the folder, no reading."""
        try:
            found = self._path(task).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def write(self, task: str, tensors: Tensors) -> None:
        """Replace those of a task.

        Raises:
            Transient: the disk is full.
        """
        write_atomic(self._path(task), npz_bytes(tensors))

    @contextmanager
    def restored_on_error(self, task: str, by: type[Exception]) -> Iterator[None]:
        """Within, those of a task may be written; an error of this kind brings back what was there before.

        Where that fails too, what was written stays.

        Raises:
            Transient, Misconfigured: the disk does not say what was there.
        """
        with restored_on_error(self._path(task), self._lock, by):
            yield

    def _path(self, task: str) -> Path:
        return self._folder / f"{task}.npz"


@contextmanager
def restored_on_error(path: Path, lock: threading.Lock, by: type[Exception]) -> Iterator[None]:
    """Within, a file may be written; an error of this kind brings back what was there before.

    Where that fails too, what was written stays.

    Raises:
        Transient, Misconfigured: the disk does not say what was there.
    """
    with lock:  # a round that was called off may still be at its disk: its undoing comes first
        with disk_errors(path):
            before = path.read_bytes() if path.exists() else None
        try:
            yield
        except by:
            with suppress(LichenError, OSError):
                remove(path) if before is None else write_atomic(path, before)
            raise
