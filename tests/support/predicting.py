"""Inference as the agent runs it, in a test: its service, and its processes gone afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from edge_agent.inference.service import Inference


@asynccontextmanager
async def predicting(inference: Inference) -> AsyncIterator[Inference]:
    task = asyncio.create_task(inference.run())
    await asyncio.sleep(0)
    try:
        yield inference
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled(), task.exception()
