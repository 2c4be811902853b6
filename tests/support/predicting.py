"""Inference as the agent runs it, in a test: its service, and its processes gone afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.service import Inference, Publish

OBSERVED: WeakKeyDictionary[Inference, list[BatchObservation]] = WeakKeyDictionary()


@asynccontextmanager
async def predicting(inference: Inference, publish: Publish | None = None) -> AsyncIterator[Inference]:
    seen = OBSERVED.setdefault(inference, [])
    task = asyncio.create_task(inference.run(publish=publish, observe=seen.append))
    await asyncio.sleep(0)
    try:
        yield inference
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled(), task.exception()
