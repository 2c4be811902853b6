"""The end of a process: waited for, and brought about where it does not come."""

import asyncio
import contextlib
import os
import signal
import time
from typing import Final

_PATIENCE_S: Final = 1.0


async def ended(process: asyncio.subprocess.Process) -> int:
    """Exit status of a process whose socket is closed; it is killed where it stays."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def reaped(pid: int) -> int:
    """As :func:`ended`, of a fork of ours."""
    until = time.monotonic() + _PATIENCE_S
    try:
        while time.monotonic() < until:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # somebody has waited for all children
        return 0
