"""A process that ends with SIGKILL at a chosen operation of its disk."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from runtime.storage.disk import DISK, Disk


class KillingDisk(Disk):
    """SIGKILL to its own process just before its ``at``-th operation that changes a disk."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def _step(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def mkdir(self, folder: Path) -> None:
        self._step()
        super().mkdir(folder)

    def write(self, path: Path, data: bytes, *, sync: bool, fresh: bool = False) -> None:
        self._step()
        super().write(path, data[: len(data) // 2], sync=False, fresh=fresh)
        self._step()
        super().write(path, data, sync=sync)

    def replace(self, old: Path, new: Path) -> None:
        self._step()
        super().replace(old, new)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def rmtree(self, folder: Path, *, ignore_errors: bool = False) -> None:
        self._step()
        for file in sorted(folder.glob("*"))[:1]:
            file.unlink()
        self._step()
        super().rmtree(folder, ignore_errors=ignore_errors)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._step()


def killed_at(at: int, work: Callable[[], None]) -> bool:
    """Run ``work`` in a process of its own, which SIGKILL ends; False if it came to its end."""
    child = os.fork()
    if not child:
        code = 1
        try:
            DISK.set(KillingDisk(at))
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, -signal.SIGKILL}
    return code != 0
