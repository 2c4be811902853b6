"""A link that only listens: passes each message to an observer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings


class Listener(Protocol):
    """Takes every message of its topics."""

    def filters(self) -> tuple[tuple[str, int], ...]:
        """Topic filters and their QoS."""

    def apply(self, topic: str, payload: bytes) -> object:
        """Take one message."""


@asynccontextmanager
async def listening(
    settings: MqttSettings, client: str, listener: Listener, changed: Callable[[], None] = lambda: None
) -> AsyncIterator[Link]:
    """Connect, and pass every message to ``listener`` until the end of the context.

    Args:
        settings: of the broker.
        client: MQTT client id.
        listener: takes the messages.
        changed: called after each message.
    """
    link = Link(settings, client, filters=listener.filters())

    async def listen() -> None:
        async for message in link.messages():
            listener.apply(message.topic, message.payload)
            message.ack()
            changed()

    tasks = [asyncio.create_task(work, name=client) for work in (link.run(), listen())]
    try:
        await link.wait_connected()
        yield link
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
