"""Waits for the end of a process, and kills it if it does not end."""

import asyncio
import contextlib
import os
import signal
import time
from typing import Final

_PATIENCE_S: Final = 1.0


async def ended(process: asyncio.subprocess.Process) -> int:
    """Exit status of a process whose socket is closed; it is killed if it does not end."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def reaped(pid: int) -> int:
    """As :func:`ended`, of our own child."""
    until = time.monotonic() + _PATIENCE_S
    try:
        while time.monotonic() < until:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # another waiter has reaped all children
        return 0
