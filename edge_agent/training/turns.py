"""The tasks of a device learn in turn: one reads windows, trains and packs its update; the others wait.

So the device holds the windows and the worker of one task at a time, and the account of privacy, which all
tasks share, is read and charged by one at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from edge_agent.ports import Trainer


class TrainingTurns:
    """Turns in the order of their requests: no task gets two of them while another one waits."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # wakes those that wait in their order
        self._owner = ""

    @asynccontextmanager
    async def turn(self, task: str, say: Callable[[str], None]) -> AsyncIterator[None]:
        """Wait for this task's turn, and hold it for the body.

        Args:
            task: its name, for the others.
            say: given the wait in words.
        """
        if self._lock.locked():
            say(f"waits for its turn: task {self._owner!r} learns, and one task of a device at a time")
        async with self._lock:
            self._owner = task
            yield


class SharedWorker:
    """The device's worker, as a further task uses it: the main task closes it.

    Args:
        worker: of the device.
    """

    def __init__(self, worker: Trainer) -> None:
        self._worker = worker

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Run one job. Raises WorkerFailed."""
        await self._worker.run(job_dir, timeout_s)

    async def close(self) -> None:
        """Do nothing: the job was cancelled, and other tasks use the process."""
