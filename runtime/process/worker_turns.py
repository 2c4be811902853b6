"""A limit of the child processes that several parts of a daemon start.

A worker of :mod:`runtime.process.worker` keeps its child warm between two jobs, which costs the memory of
what it has imported. Workers that share turns have at most so many children in all: one that begins a job
waits for its turn, in order, and then ends the child that was idle longest if there is no room for its own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol


class Resting(Protocol):
    """Something that may hold an idle child process."""

    @property
    def pid(self) -> int | None:
        """The child's process id, or None."""

    async def close(self) -> None:
        """End the child, if there is one."""


class WorkerTurns:
    """The turns of some workers.

    Args:
        most: children at one time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._busy: set[Resting] = set()
        self._idle: dict[Resting, None] = {}
        """Those that were left with a child, the one that worked last at the end."""

    @asynccontextmanager
    async def turn(self, worker: Resting) -> AsyncIterator[None]:
        """Wait for a turn; inside of it, the worker may have a child process."""
        async with self._free:
            self._idle.pop(worker, None)
            self._busy.add(worker)
            try:
                await self._make_room()
                yield
            finally:
                self._busy.discard(worker)
                if worker.pid is not None:
                    self._idle[worker] = None

    async def _make_room(self) -> None:
        while self._idle and len(self._busy) + len(self._idle) > self._most:
            other = next(iter(self._idle))
            del self._idle[other]
            await other.close()  # at once if its child has left meanwhile
