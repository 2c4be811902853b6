"""What devices send, from the broker to the journal. A peer can never crash the daemon.

Rules of the queues: the link's inbox is bounded (un-acknowledged messages stay with the broker). Every device
has a queue of its own, and ``LANES`` services take from the queues in turn (:mod:`coordinator.lanes`), so
that one device's messages keep their order and none crowds out the others. Few updates are decoded at a time
(``coordinator.receive``), in threads. An update or chunk is acknowledged when its effect is durable, or when
it has none; a state or metric when the ledger has written it; what was dropped at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import structlog
from structlog.contextvars import bound_contextvars

from coordinator import schema
from coordinator.blobserver import BlobServer
from coordinator.deployment import Deploying
from coordinator.guard import Guard
from coordinator.lanes import Lanes
from coordinator.ledger import Ledger
from coordinator.receive import Receiver
from coordinator.roster import Roster
from coordinator.rounds.driver import Driver
from coordinator.secrets import SecretWatch
from coordinator.telling import Teller
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.messages import Fetch, Metric, State, decode
from protocol.topics import Kind, Route, parse
from runtime.mqtt import Message

log = structlog.get_logger(__name__)

LANES: Final = 32
"""Messages in hand at a time: what waits for one disk sync is synced together."""
_NOBODY: Final = "(unknown)"
_TOPIC: Final = 200
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
        deployment: Deploying,
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
        self._deployment = deployment
        self._secrets = SecretWatch(roster)
        self.lanes: Lanes[tuple[Message, Route]] = Lanes(now)

        self.taskless: Callable[[str], None] = lambda _: None
        """Told of a device that is here and knows no task."""

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
        if route.kind in (Kind.UPDATE, Kind.UP_BLOB):
            return self._receiver.handle(route, message.payload)
        return self._light(route, message)

    async def dispatch(self, message: Message) -> None:
        """Queue a message in its device's lane."""
        try:
            route = self._route(message.topic)
        except Refused as refused:
            self._refuse(message.topic, _NOBODY, 0, refused)
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
        if self._guard.may_tell(device):
            log.warning("dropped", device=device, why=words, dropped=self.lanes.dropped)

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
            with bound_contextvars(topic=message.topic[:_TOPIC]):  # on every line of the log until then
                if await handling:
                    return
        except Refused as refused:
            self._refuse(message.topic, route.device or _NOBODY, self._driver.state.round, refused)
        except (LichenError, OSError) as error:
            log.warning("not_stored", topic=message.topic[:_TOPIC], why=str(error))
        message.ack()

    def _refuse(self, topic: str, device: str, round_: int, refused: Refused) -> None:
        with bound_contextvars(topic=topic[:_TOPIC]):
            self._teller.refuse(device, round_, None, refused)

    async def _light(self, route: Route, message: Message) -> bool:
        device, payload = route.device or _NOBODY, message.payload
        match route.kind:
            case Kind.STATE:
                return await self._state(device, payload, message.ack)
            case Kind.METRIC:
                return await self._metric(device, payload, message.ack)
            case Kind.FETCH:
                await self._server.request(device, decode(payload, Fetch))
                return False
            case _:
                raise Refused(Reason.MALFORMED, f"{route.kind} comes from the coordinator, not to it")

    async def _state(self, device: str, payload: bytes, ack: Callable[[], None]) -> bool:
        if not payload:  # a retained message was cleared: nothing is said about the device
            return False
        state = decode(payload, State)
        _same_device(device, state.device)
        came = self._roster.update(state)
        self._secrets.heard(device)
        await self._ledger.put(schema.devices, ack, **self._roster.row(device))
        if came:
            log.info("device_online", device=device, windows=state.windows)
        if state.status == "online":
            # Targets (): it knows the task, and has no data yet.
            if not state.modalities and state.targets is None and state.refuses is None:
                self.taskless(device)
            try:
                await self._driver.device_online(device, came=came)
            except Transient as error:  # a full disk: the next tick sees the device
                log.warning("not_journaled", device=device, why=str(error))
            await self._point(device, came=came)
        return True

    async def _point(self, device: str, *, came: bool) -> None:
        """Tell a device what it alone should run; nobody waits for the broker here."""
        try:
            pointer = await self._deployment.pointer_for(device, came=came)
        except (LichenError, OSError) as error:  # the device says its state again
            log.warning("no_pointer", device=device, why=str(error))
            return
        if pointer is not None:
            self._teller.say(device, Kind.MODEL, pointer)

    async def _metric(self, device: str, payload: bytes, ack: Callable[[], None]) -> bool:
        metric = decode(payload, Metric)
        _same_device(device, metric.device)
        # Rounds that never were would fill the disk.
        if metric.round is None or device not in self._roster or metric.round > self._driver.state.round:
            return False
        row = {"round": metric.round, "device": device, "metrics": metric.metrics}
        await self._ledger.put(schema.device_metrics, ack, **row)
        return True


def _same_device(topic: str, claimed: str) -> None:
    if topic != claimed:
        raise Refused(Reason.WRONG_DEVICE, f"the topic is {topic}'s, the message says {claimed}")
