"""One connection to the broker for all tasks of a device: each gets the messages of its namespace (ADR 53).

The device has one certificate and one client id, so it has one connection. Its will is the main task's state.

Queue: at most ``MAX_WAITING`` messages a task; while one is full the others wait, too, so that the link's own
limits hold. A task that is not running is sent nothing; when it starts it subscribes again, and the broker
sends what is retained once more.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import structlog

from protocol.errors import Refused, Transient
from protocol.topics import parse
from runtime.concurrency.signals import Signal
from runtime.mqtt.link import Link, LinkCounters, Message, OnConnect, WillNow

_log = structlog.get_logger(__name__)
MAX_WAITING: Final = 64


class LinkView:
    """The link as one task sees it; see :class:`edge_agent.ports.TaskLink`.

    Args:
        shared: the link of the device.
        filters: of this task, which the link is subscribed to.
    """

    def __init__(self, shared: "SharedLink", filters: Sequence[tuple[str, int]]) -> None:
        self._shared = shared
        self._link = shared.link
        self._filters = tuple(filters)
        self._waiting: asyncio.Queue[Message] = asyncio.Queue(MAX_WAITING)
        self._again = Signal()
        self._on_connect: OnConnect | None = None
        self._runs = False
        self._missed = True
        """Retained messages may have come while the task did not run."""

    @property
    def connected(self) -> bool:
        """See :class:`runtime.mqtt.link.Link`, as the others."""
        return self._link.connected

    @property
    def resumed(self) -> bool:
        """See there."""
        return self._link.resumed

    @property
    def chunk_bytes(self) -> int:
        """See there."""
        return self._link.chunk_bytes

    @property
    def counters(self) -> LinkCounters:
        """Of the whole device."""
        return self._link.counters

    @property
    def why(self) -> str:
        """See there."""
        return self._link.why

    @property
    def since(self) -> float:
        """See there."""
        return self._link.since

    @property
    def until(self) -> float | None:
        """See there."""
        return self._link.until

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """See there."""
        await self._link.publish(topic, payload, qos=qos, retain=retain, timeout_s=timeout_s)

    async def messages(self) -> AsyncIterator[Message]:
        """Messages of this task's namespace, without end; one consumer, which acknowledges each."""
        while True:
            yield await self._waiting.get()

    def reconnect(self, because: str) -> None:
        """Subscribe again, for the retained messages: the connection is not this task's to end."""
        _log.info("subscribing_again", why=because)
        self._again.set()

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Take part, until cancelled. A further task has no will: MQTT has one for a connection."""
        del will
        self._on_connect = on_connect
        self._runs = True
        try:
            if self.connected:
                await self._join()
            while await self._again.wait():
                await self._join()
        finally:
            self._runs = False
            self._drain()

    async def _join(self) -> None:
        """As after a connect. If the connection is lost meanwhile, the next one does it."""
        try:
            await self._link.subscribe_again(self._filters)
            self._missed = False
            await self.greet()
        except Transient as error:
            _log.debug("not_subscribed_again", why=str(error))

    async def greet(self) -> None:
        """The connection is up. Raises Transient: it was lost meanwhile."""
        if not self._runs:
            return
        if self._missed and self._filters:
            self._again.set()
        if self._on_connect is not None:
            try:
                await self._on_connect()
            except Refused as error:
                _log.error("greeting_refused", error=str(error))

    async def take(self, message: Message) -> None:
        """Queue a message, or acknowledge it if the task does not run."""
        if self._runs:
            await self._waiting.put(message)
        if not self._runs:  # also if it has ended meanwhile: an open acknowledgement holds up all later ones
            self._missed = True
            message.ack()
            self._drain()

    def _drain(self) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait().ack()


class MainView(LinkView):
    """The main task's view: it runs the link, with its will."""

    def reconnect(self, because: str) -> None:
        """End the connection; the next one reads the TLS files again."""
        self._link.reconnect(because)

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Stay connected until cancelled, for all tasks."""
        self._on_connect = on_connect
        self._runs = True
        try:
            await self._link.run(on_connect=self._shared.greet, will=will)
        finally:
            self._runs = False
            self._drain()


class SharedLink:
    """The link of a device with several tasks.

    Args:
        link: subscribed to the filters of all of them.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._views: dict[str, LinkView] = {}
        self._main: LinkView | None = None

    def main(self, namespace: str) -> LinkView:
        """The main task's view."""
        self._main = self._views[namespace] = MainView(self, ())
        return self._main

    def further(self, namespace: str, filters: Sequence[tuple[str, int]]) -> LinkView:
        """A further task's view; a task that starts again gets a new one."""
        view = self._views[namespace] = LinkView(self, filters)
        return view

    async def greet(self) -> None:
        """The connection is up: each task sends its state. Raises Transient."""
        failed: Transient | None = None
        for view in [*self._views.values()]:
            try:
                await view.greet()
            except Transient as error:
                failed = error
        if failed is not None:
            raise failed

    async def run(self) -> None:
        """Hand each message to its task, for ever."""
        async for message in self.link.messages():
            level = message.topic.split("/", 3)[2:3]
            view = self._views.get(level[0]) if level else None
            if view is None and not _is_of_a_task(message.topic):
                view = self._main  # which counts and logs what it cannot read
            if view is None:  # its task is not built yet, and subscribes again; or its table was removed
                message.ack()
            else:
                await view.take(message)


def _is_of_a_task(topic: str) -> bool:
    try:
        parse(topic)
    except Refused:
        return False
    return True
