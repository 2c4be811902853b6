"""What a method keeps on the device between rounds (its private tensors), one file a task."""

from pathlib import Path

import structlog

from models.contract import Tensors
from models.params import read_npz, write_npz
from protocol.errors import Misconfigured
from runtime.files import disk_errors

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
            path.unlink(missing_ok=True)
            return {}

    def write(self, task: str, tensors: Tensors) -> None:
        """Replace those of a task.

        Raises:
            Transient: the disk is full.
        """
        path = self._path(task)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_npz(path, tensors)

    def _path(self, task: str) -> Path:
        return self._folder / f"{task}.npz"
