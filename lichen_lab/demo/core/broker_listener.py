"""A link that only listens, beside the demo's own: for what a plan counts at the broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import FLEET
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings


class Onlooking(Protocol):
    """What is told of every message."""

    missed: int
    """Messages that there was no room for."""

    def filters(self) -> tuple[tuple[str, int], ...]:
        """Topic filters and their QoS."""

    def apply(self, topic: str, payload: bytes) -> None:
        """Take one message."""


@asynccontextmanager
async def looking_on(fleet: DemoFleet[Any], seen: Onlooking) -> AsyncIterator[None]:
    """Tell it of what goes over the broker, until the end; then how much was missed."""
    settings = MqttSettings(host="127.0.0.1", port=fleet.layout.port)
    link = Link(settings, f"onlooker-{FLEET}", filters=seen.filters())
    running = asyncio.create_task(link.run(), name="onlooker link")

    async def count() -> None:
        async for message in link.messages():
            seen.apply(message.topic, message.payload)
            message.ack()

    counting = asyncio.create_task(count(), name="onlooker")
    try:
        await link.wait_connected()
        yield
    finally:
        seen.missed = link.counters.dropped
        for task in (counting, running):
            task.cancel()
        await asyncio.wait([counting, running])
