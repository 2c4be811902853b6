"""Metrics of rounds that wait to be sent to the coordinator."""

import asyncio
from collections.abc import Mapping
from math import isfinite
from typing import Final

MAX_WAITING: Final = 16


class RoundMetrics:
    """A queue of ``MAX_WAITING`` places; when it is full, new metrics are dropped."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[int, dict[str, float]]] = asyncio.Queue(MAX_WAITING)

    def __len__(self) -> int:
        return self._queue.qsize()

    def add(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Queue the finite metrics of a round."""
        if not self._queue.full():
            self._queue.put_nowait(
                (round_, {key: value for key, value in metrics.items() if isfinite(value)})
            )

    async def take(self) -> tuple[int, dict[str, float]]:
        """Remove and return the oldest; wait if there are none."""
        return await self._queue.get()
