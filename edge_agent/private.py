"""What a method keeps on the device between rounds (its private tensors), one file a task."""

from pathlib import Path

import structlog

from models.contract import Tensors
from models.params import npz_bytes, read_npz
from protocol.errors import Misconfigured
from runtime.files import remove, write_atomic

_log = structlog.get_logger("edge_agent.private")


class PrivateTensors:
    """Files in one folder. Synchronous."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, task: str) -> Tensors:
        """Those of a task; empty where there are none, or where the file was damaged."""
        path = self._path(task)
        if not path.exists():
            return {}
        try:
            return read_npz(path)
        except Misconfigured as error:
            _log.error("private tensors are lost; training begins without them", error=str(error))
            remove(path)
            return {}

    def stamp(self, task: str) -> tuple[int, int, int] | None:
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

    def _path(self, task: str) -> Path:
        return self._folder / f"{task}.npz"
