"""Disks that can be filled, and that fail: ext4 in a file, mounted over a state folder (Linux, root).

The failure is the file system's own: ``mount -o remount,abort`` does what the kernel does to an ext4 whose
card gives errors. It becomes read-only at once, and unsynced writes are lost, as in a power cut.
"""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured, Transient

_BYTES: Final = 48 * 1024 * 1024
_STEP: Final = 1024 * 1024
_TOOLS: Final = ("mkfs.ext4", "mount", "umount")
_PATH: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
_TIMEOUT_S: Final = 20.0
_BUSY_S: Final = 3.0


def why_unavailable() -> str:
    """Why no such disk can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "mounting a disk of its own needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    return "" if Path("/dev/loop-control").exists() else "there is no /dev/loop-control"


def _run(*words: str) -> None:
    program = shutil.which(words[0], path=_PATH) or words[0]
    done = subprocess.run(
        [program, *words[1:]], capture_output=True, timeout=_TIMEOUT_S, check=False, text=True
    )
    if done.returncode:
        raise Transient(f"{' '.join(words)}: {done.stderr.strip()}")


class FaultyDisk:
    """An ext4 of 48 MB at ``folder``.

    Args:
        image: the file that holds it.
        folder: where it is mounted; created if missing.

    Raises:
        Misconfigured: it cannot be made here.
        Transient: a tool failed.
    """

    def __init__(self, image: Path, folder: Path) -> None:
        if why := why_unavailable():
            raise Misconfigured(f"no disk for a trial: {why}")
        self.folder = folder
        self._image = image
        self._balloon = folder / "balloon"
        folder.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.folder))

    def fill(self) -> None:
        """Fill every block."""
        with contextlib.suppress(OSError), self._balloon.open("ab", buffering=0) as file:
            for size in (_STEP, 4096, 512):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(file.fileno(), b"\0" * size)

    def free(self) -> None:
        """Free the blocks that :meth:`fill` took."""
        self._balloon.unlink(missing_ok=True)

    def fail(self) -> None:
        """Fail: read-only, unsynced writes lost, until :meth:`repair`."""
        _run("mount", "-o", "remount,abort", str(self.folder))

    def repair(self) -> None:
        """Unmount and mount again; no process may have a file open there."""
        self._unmount()
        self._mount()

    def _unmount(self) -> None:
        """Unmount; retry, because a worker dies shortly after its daemon."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return _run("umount", str(self.folder))
            except Transient:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Unmount and remove the image."""
        with contextlib.suppress(Transient):
            self._unmount()
        self._image.unlink(missing_ok=True)
