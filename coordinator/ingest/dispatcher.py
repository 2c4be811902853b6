"""What devices send, from the broker to the journal. A peer can never crash the daemon.

Rules of the queues: the link's inbox is bounded (un-acknowledged messages stay with the broker). Every device
has a queue of its own, and ``LANES`` services take from the queues in turn
(:mod:`coordinator.ingest.fair_queue`), so
that one device's messages keep their order and none crowds out the others. Few updates are decoded at a time
(``coordinator.ingest.update_receiver``), in threads. An update or chunk is acknowledged when its effect is
durable, or when
it has none; a state or metric when the ledger has written it; what was dropped at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import structlog
from structlog.contextvars import bound_contextvars

from coordinator.admission.access import Guard
from coordinator.fleet.device_registry import Roster
from coordinator.ingest.fair_queue import Lanes
from coordinator.ingest.state_receiver import StateIntake
from coordinator.ingest.update_receiver import Receiver
from coordinator.messaging.blob_server import BlobServer
from coordinator.messaging.log_rate_limit import Voice, cut, more
from coordinator.messaging.receipts import Teller
from coordinator.rounds.driver import Driver
from coordinator.storage import schema
from coordinator.storage.update_journal import Journal
from coordinator.storage.write_behind import Ledger
from protocol.errors import LichenError, Reason, Refused
from protocol.messages import Fetch, Metric, decode
from protocol.topics import Kind, Route, parse
from runtime.mqtt.link import Message
from runtime.token_buckets import Buckets

log = structlog.get_logger(__name__)

LANES: Final = 32
"""Messages in hand at a time: what waits for one disk sync is synced together."""
_NOBODY: Final = "(unknown)"
MAX_METRIC_BYTES: Final = 8192
METRICS_BURST: Final = 20.0
METRICS_A_SECOND: Final = 0.2
"""Metrics of one device that are written in a second, after its burst; what comes faster is dropped."""
_SAID: Final = frozenset({Kind.STATE, Kind.METRIC, Kind.FETCH})
_TOPIC: Final = 120
"""Characters of a topic in the log."""


class Ingest:
    """Dispatches messages; :meth:`run` reads them, :meth:`run_lane` handles the heavy ones."""

    def __init__(
        self,
        *,
        fleet: str,
        messages: Callable[[], AsyncIterator[Message]],
        roster: Roster,
        driver: Driver,
        receiver: Receiver,
        server: BlobServer,
        teller: Teller,
        ledger: Ledger,
        guard: Guard,
        journal: Journal,
        states: StateIntake,
        voice: Voice,
        now: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._messages = messages
        self._roster = roster
        self._driver = driver
        self._receiver = receiver
        self._server = server
        self._teller = teller
        self._ledger = ledger
        self._guard = guard
        self._journal = journal
        self._states = states
        self._voice = voice
        self._now = now
        self._metric_rate = Buckets(METRICS_BURST, METRICS_A_SECOND)
        self.lanes: Lanes[tuple[Message, Route]] = Lanes(now)

    async def run(self) -> None:
        """Read messages for ever."""
        async for message in self._messages():
            await self.dispatch(message)

    async def run_lane(self) -> None:
        """One of the services that handle messages, for ever."""
        while True:
            device, (message, route), size = await self.lanes.take()
            try:
                await self._settle(message, route, self._handling(message, route))
            finally:
                await self.lanes.done(device, size)

    def _handling(self, message: Message, route: Route) -> Awaitable[bool | None]:
        if route.kind is not Kind.STATE:
            self._roster.touch(route.device or _NOBODY)
        if route.kind in (Kind.UPDATE, Kind.UP_BLOB):
            return self._receiver.handle(route, message.payload)
        return self._light(route, message)

    async def dispatch(self, message: Message) -> None:
        """Queue a message in its device's lane."""
        try:
            route = self._route(message.topic)
        except Refused as refused:
            self._refuse(message.topic, _NOBODY, None, refused)
            message.ack()
            return
        device = route.device or _NOBODY
        if not await self.lanes.put(device, (message, route), len(message.payload)):
            self._drop(device, route)
            message.ack()
            await asyncio.sleep(0)  # nothing here waits: a flood would keep the others from running

    def _drop(self, device: str, route: Route) -> None:
        """Count it; say it now and then: a flood must not become one of the log."""
        words = f"{route.kind}: more messages than there is room for; the device sends again"
        self._ledger.refused(device, Refused(Reason.FULL, words))
        if (unsaid := self._voice.unsaid(device)) is not None:
            log.warning("dropped", device=device, why=words, dropped=self.lanes.dropped, **more(unsaid))

    def _route(self, topic: str) -> Route:
        route = parse(topic)
        if route.fleet != self._fleet or route.device is None:
            raise Refused(Reason.MALFORMED, f"topic {topic[:200]!r} is not for the coordinator")
        return route

    async def _settle(self, message: Message, route: Route, handling: Awaitable[bool | None]) -> None:
        """Wait for the effect, then acknowledge; unless the handling answers True and does that itself.

        Without effect (a full disk) the device will send again.
        """
        try:
            with bound_contextvars(topic=cut(message.topic, _TOPIC)):  # on every line of the log until then
                if await handling:
                    return
        except Refused as refused:
            self._refuse(message.topic, route.device or _NOBODY, route.kind, refused)
        except (LichenError, OSError) as error:
            if (unsaid := self._voice.unsaid(route.device or _NOBODY)) is not None:
                log.warning("not_stored", topic=cut(message.topic, _TOPIC), why=str(error), **more(unsaid))
        message.ack()

    def _refuse(self, topic: str, device: str, kind: Kind | None, refused: Refused) -> None:
        with bound_contextvars(topic=cut(topic, _TOPIC)):
            if refused.reason is Reason.UNKNOWN_KIND:
                self._ledger.refused(device, refused)
                log.debug("left_aside", device=device, why=refused.detail)
                return
            # What a newer release says otherwise, or a device that still has another task, is no bad conduct.
            said = kind in _SAID and refused.reason in {Reason.MALFORMED, Reason.TOO_LARGE}
            self._teller.refuse(device, self._driver.state.round, None, refused, conduct=not said)

    async def _light(self, route: Route, message: Message) -> bool:
        device, payload = route.device or _NOBODY, message.payload
        match route.kind:
            case Kind.STATE:
                return await self._states.take(device, payload, message.ack)
            case Kind.METRIC:
                return await self._metric(device, payload, message.ack)
            case Kind.FETCH:
                if self._is_heard(device):
                    await self._server.request(device, decode(payload, Fetch))
                return False
            case _:
                raise Refused(Reason.MALFORMED, f"{route.kind} comes from the coordinator, not to it")

    def _is_heard(self, device: str) -> bool:
        """Whether anything is taken from it; what is not is counted."""
        if self._guard.barred(device) is None:
            return True
        self._guard.turned_away += 1
        return False

    async def _metric(self, device: str, payload: bytes, ack: Callable[[], None]) -> bool:
        """A row for each round and device that took part in it: others would fill the disk."""
        if not self._is_heard(device):
            return False
        if len(payload) > MAX_METRIC_BYTES:
            words = f"metrics of {len(payload)} bytes, at most {MAX_METRIC_BYTES}"
            raise Refused(Reason.TOO_LARGE, words)
        metric = decode(payload, Metric)
        if metric.device != device:
            words = f"the topic is {device}'s, the message says {metric.device}"
            raise Refused(Reason.WRONG_DEVICE, words)
        if metric.round is None or not self._metric_rate.take(device, self._now()):
            return False
        if not await self._took_part(device, metric.round):
            return False
        row = {"round": metric.round, "device": device, "metrics": metric.metrics}
        await self._ledger.put(schema.device_metrics, ack, **row)
        return True

    async def _took_part(self, device: str, round_: int) -> bool:
        state = self._driver.state
        if round_ == state.round and device in state.invited:
            return True
        return await asyncio.to_thread(self._journal.digest_of, round_, device) is not None
