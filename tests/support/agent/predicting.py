"""Inference as the agent runs it, in a test: its service, with its processes ended afterwards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.service import Inference, Publish
from tests.support.services import beside

OBSERVED: WeakKeyDictionary[Inference, list[BatchObservation]] = WeakKeyDictionary()


@asynccontextmanager
async def predicting(inference: Inference, publish: Publish | None = None) -> AsyncIterator[Inference]:
    seen = OBSERVED.setdefault(inference, [])
    async with beside(inference.run(publish=publish, observe=seen.append), forever=True):
        yield inference
