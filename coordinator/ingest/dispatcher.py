"""Passes messages from the broker to the handler of their kind. A peer can never crash the daemon.

Limits: the link's inbox is bounded (unacknowledged messages stay with the broker). Every device has a queue
of its own, and ``LANES`` workers take from the queues in turn (:mod:`coordinator.ingest.fair_queue`): a
device's messages keep their order, and no device crowds out the others. Few updates are decoded at a time
(``coordinator.ingest.update_receiver``), in threads. An update or chunk is acknowledged when its effect is
durable, or when it has none; a state or metric when the write-behind buffer has written it; a dropped message
at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars

from coordinator.admission.access import AccessControl
from coordinator.ingest.fair_queue import FairQueue
from coordinator.ingest.round_access import Registered
from coordinator.messaging.log_rate_limit import LogRateLimiter, cut, more
from coordinator.messaging.receipts import ReceiptSender
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.errors import LichenError, Reason, Refused
from protocol.topics import Kind, Route, parse
from runtime.metrics import MetricFamily, counter
from runtime.mqtt.link import Message

log = structlog.get_logger(__name__)

LANES: Final = 128
"""Messages handled at a time: those that wait for a disk sync share one."""
_UNKNOWN_DEVICE: Final = "(unknown)"
_FROM_DEVICES: Final = frozenset({Kind.STATE, Kind.METRIC, Kind.LOG, Kind.FETCH})
_OF_WHO_IS_HEARD: Final = frozenset({Kind.METRIC, Kind.LOG, Kind.FETCH})
"""Dropped where their device is barred; an update's handler answers it, a state's asks it later."""
_TOPIC: Final = 120
"""Characters of a topic in the log."""
Handler = Callable[[Route, Message], Awaitable[bool]]
"""Handles a message; returns True if it acknowledges the message itself, once the effect is on disk."""


@dataclass(eq=False, repr=False, kw_only=True)
class Dispatcher:
    """Hands each message to the handler of its kind.

    Args:
        fleet: the fleet's name.
        messages: everything that arrives.
        handlers: by kind; a kind without one is sent by the coordinator, not to it.
        roster: records that a device was heard.
        access: decides which devices are admitted.
        receipts: sends refusals.
        ledger: counts refusals.
        voice: limits the log lines about a device.
        now: monotonic seconds.
    """

    fleet: str
    messages: Callable[[], AsyncIterator[Message]]
    handlers: Mapping[Kind, Handler]
    roster: Registered
    access: AccessControl
    receipts: ReceiptSender
    ledger: WriteBehindBuffer
    voice: LogRateLimiter
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self._handlers = dict(self.handlers)
        self.lanes: FairQueue[tuple[Message, Route]] = FairQueue(self.now)

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks to run: the reader and the workers."""
        return {"ingest": self._run, **{f"lane-{n}": self._run_lane for n in range(LANES)}}

    async def _run(self) -> None:
        async for message in self.messages():
            await self.dispatch(message)

    async def _run_lane(self) -> None:
        while True:
            device, (message, route), size = await self.lanes.take()
            try:
                await self._settle(device, route, message)
            finally:
                self.lanes.done(device, size)

    async def dispatch(self, message: Message) -> None:
        """Queue a message for its device."""
        try:
            device, route = self._route(message.topic)
        except Refused as refused:
            self._refuse(message.topic, _UNKNOWN_DEVICE, None, refused)
            message.ack()
            return
        if not await self.lanes.put(device, (message, route), len(message.payload)):
            self._drop(device, route)
            message.ack()
            await asyncio.sleep(0)  # yield: a flood must not keep other tasks from running

    def _drop(self, device: str, route: Route) -> None:
        """Count a drop; log it at intervals, so that a flood of messages is no flood of log lines."""
        words = f"{route.kind}: more messages than there is room for; the device sends again"
        self.ledger.refused(device, Refused(Reason.FULL, words))
        if (unsaid := self.voice.unsaid(device)) is not None:
            log.warning("dropped", device=device, why=words, dropped=self.lanes.dropped, **more(unsaid))

    def _route(self, topic: str) -> tuple[str, Route]:
        route = parse(topic)
        if route.fleet != self.fleet or route.device is None:
            raise Refused(Reason.MALFORMED, f"topic {topic[:200]!r} is not for the coordinator")
        return route.device, route

    async def _settle(self, device: str, route: Route, message: Message) -> None:
        """Wait for the effect, then acknowledge, unless the handler acknowledges itself.

        Without an effect (a full disk) the device sends again.
        """
        try:
            bind_contextvars(topic=cut(message.topic, _TOPIC))  # for all log lines
            if await self._handle(device, route, message):
                return
        except Refused as refused:
            self._refuse(message.topic, device, route.kind, refused)
        except (LichenError, OSError) as error:
            if (unsaid := self.voice.unsaid(device)) is not None:
                log.warning("not_stored", topic=cut(message.topic, _TOPIC), why=str(error), **more(unsaid))
        message.ack()

    async def _handle(self, device: str, route: Route, message: Message) -> bool:
        if route.kind is not Kind.STATE:
            self.roster.touch(device)
        if route.kind in _OF_WHO_IS_HEARD and self.access.denial(device) is not None:
            self.access.turned_away += 1
            return False
        handler = self._handlers.get(route.kind)
        if handler is None:
            raise Refused(Reason.MALFORMED, f"{route.kind} comes from the coordinator, not to it")
        return await handler(route, message)

    def _refuse(self, topic: str, device: str, kind: Kind | None, refused: Refused) -> None:
        with bound_contextvars(topic=cut(topic, _TOPIC)):
            if refused.reason is Reason.UNKNOWN_KIND:
                self.ledger.refused(device, refused)
                log.debug("left_aside", device=device, why=refused.detail)
                return
            # A message of a newer release, or a device with an outdated task, is no offence.
            said = kind in _FROM_DEVICES and refused.reason in {Reason.MALFORMED, Reason.TOO_LARGE}
            self.receipts.send_refused(device, 0, None, refused, conduct=not said)

    def metrics(self) -> Iterable[MetricFamily]:
        """Counts of dropped messages."""
        yield counter("lichen_messages_dropped", "Messages beyond a device's share", self.lanes.dropped)
