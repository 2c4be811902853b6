"""Scenes with a broker, run on the simulated one and on a real one: both must give the same result.

A scene is ``async def scene(net) -> observations``; its observations must not depend on timing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from runtime.mqtt.link import Will

if TYPE_CHECKING:
    from runtime.mqtt.inbox import Message


class Client:
    """A link, a consumer that records messages, and whether it acknowledges."""

    def __init__(self, link: Any, **options: Any) -> None:
        self.link = link
        self._options = options
        """Of its ``run``."""
        self.acks = True
        self.got: list[tuple[str, bytes, bool]] = []
        self._held: list[Message] = []
        self._running: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.link.messages():
            self.got.append((message.topic, message.payload, message.retain))
            if self.acks:
                message.ack()
            else:
                self._held.append(message)

    async def start(self) -> "Client":
        self._running = asyncio.create_task(self.link.run(**self._options))
        await asyncio.wait_for(self.link.wait_connected(), 10)
        return self

    async def stop(self) -> None:
        """Disconnect in order."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def close(self) -> None:
        await self.stop()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    def payloads(self) -> list[bytes]:
        return [payload for _, payload, _ in self.got]


class Net(Protocol):
    """One broker and its clients."""

    def client(self, client_id: str, *filters: tuple[str, int], will: Will | None = None) -> Client:
        """A client that is not started."""

    async def cut(self, client: Client) -> None:
        """Break its connection; returns when it is connected again."""

    async def settle(self) -> None:
        """Wait until everything that can arrive has arrived."""

    async def crash(self) -> None:
        """Kill the broker after its state was saved, and start it again."""


async def retained(net: Net) -> list[Any]:
    a, b = await net.client("a").start(), net.client("b", ("t/#", 1))
    await a.link.publish("t/1", b"old", retain=True)
    await a.link.publish("t/1", b"new", retain=True)
    await b.start()
    await net.settle()
    await a.link.publish("t/1", b"live", retain=True)
    await net.settle()
    await net.cut(b)
    await net.settle()
    await a.link.publish("t/1", b"", retain=True)
    await net.settle()
    c = await net.client("c", ("t/1", 1)).start()
    await net.settle()
    return [b.got, c.got]


async def offline_queue(net: Net) -> list[Any]:
    a, b, c = await net.client("a").start(), net.client("b", ("q", 1)), net.client("c", ("q", 0))
    for client in (b, c):
        await client.start()
        await client.stop()
    for n in range(5):
        await a.link.publish("q", b"%d" % n)
    await b.start()
    await c.start()
    await net.settle()
    return [b.got, c.got]


async def unacknowledged(net: Net) -> list[Any]:
    a, b = await net.client("a").start(), await net.client("b", ("q", 1)).start()
    b.acks = False
    for n in range(3):
        await a.link.publish("q", b"%d" % n)
    await net.settle()
    first = b.payloads()
    b.acks = True
    await net.cut(b)
    await net.settle()
    second = b.payloads()
    await net.cut(b)
    await net.settle()
    return [first, second, b.payloads()]


async def wills(net: Net) -> list[Any]:
    watcher = await net.client("w", ("will/#", 1)).start()
    b = await net.client("b", will=Will("will/b", b"gone")).start()
    await b.stop()
    await net.settle()
    after_goodbye = watcher.payloads()
    await b.start()
    await net.cut(b)
    await net.settle()
    late = await net.client("late", ("will/b", 1)).start()
    await net.settle()
    return [after_goodbye, watcher.got, late.got]


async def takeover(net: Net) -> list[Any]:
    watcher, a = await net.client("w", ("will/#", 1)).start(), await net.client("a").start()
    first = await net.client("same", ("q", 1), will=Will("will/1", b"first")).start()
    first.acks = False
    await a.link.publish("q", b"waits")
    await net.settle()
    second = await net.client("same", ("q", 1), will=Will("will/2", b"second")).start()
    await first.stop()
    await net.settle()
    return [first.payloads(), second.payloads(), watcher.payloads()]


async def own_messages_and_wildcards(net: Net) -> list[Any]:
    a = await net.client("a", ("x/+/z", 1), ("deep/#", 1), ("$odd/#", 0)).start()
    for topic in ("x/y/z", "x/y", "x/y/z/w", "deep", "deep/er/still", "x//z"):
        await a.link.publish(topic, topic.encode())
    await net.settle()
    return [a.payloads()]


async def killed_broker(net: Net) -> list[Any]:
    a, b = await net.client("a").start(), await net.client("b", ("q", 1), ("t", 1)).start()
    await a.link.publish("t", b"kept", retain=True)
    await net.settle()
    await b.stop()
    await a.link.publish("q", b"queued")
    await net.crash()
    await asyncio.wait_for(a.link.wait_connected(), 10)
    await b.start()
    await net.settle()
    return [sorted(b.got)]


SCENES: dict[str, Callable[[Net], Awaitable[list[Any]]]] = {
    scene.__name__: scene
    for scene in (
        retained,
        offline_queue,
        unacknowledged,
        wills,
        takeover,
        own_messages_and_wildcards,
        killed_broker,
    )
}
