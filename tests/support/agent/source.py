"""A source that delivers samples when the test gives them."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import numpy as np

from edge_agent.sources import Batch, LabelBatch, SampleBatch
from protocol.tasks.task import LABEL, Task


class HandSource:
    """Delivers the samples given to :meth:`give`; ``channels`` are those it could deliver."""

    name = "hand"

    def __init__(self, channels: Mapping[str, int]) -> None:
        self.channels = dict(channels)
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()
        self._now = 0.0
        self._given = 0

    async def samples(self) -> AsyncIterator[Batch]:
        while True:
            yield await self._batches.get()

    def give(self, task: Task, seconds: float, modalities: str, *targets: str) -> None:
        """Some more seconds of these modalities, labelled for these targets; the class changes their mean."""
        self._given += 1
        rng = np.random.default_rng(self._given)
        step = 4 * task.window.length_s
        at = self._now + np.arange(0, seconds, step)
        classes = np.arange(len(at)) % 2
        for target in targets:
            values = classes if target == LABEL else classes.astype(np.float64)
            self._batches.put_nowait(LabelBatch(at, values, target))
        for name in modalities.split():
            rate, channels = task.modality(name).rate_hz, task.modality(name).channels
            t = self._now + np.arange(int(seconds * rate)) / rate
            held = classes[np.searchsorted(at, t, side="right") - 1]
            values = rng.normal(size=(len(t), channels)) + 2.0 * held[:, None]
            self._batches.put_nowait(SampleBatch(name, t, values.astype(np.float32)))
        self._now += seconds
