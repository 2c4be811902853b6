"""A coordinator without a broker: messages are passed in by hand, publishes are recorded."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coordinator.app import open_coordinator
from coordinator.daemon import Coordinator
from coordinator.status.history import read
from protocol import messages
from protocol.errors import Transient
from protocol.messages import ModalityState, Offer, Receipt, State, Want
from protocol.topics import Kind, broadcast_topic, device_topic, parse
from runtime.mqtt.link import LinkCounters, Message
from tests.support.coordinator.fake import FLEET, TinyJobs, TinyServer, settings_for, tiny_task
from tests.support.services import beside


class FakeLink:
    def __init__(self) -> None:
        self.connected = True
        self.why = "connecting to nowhere"
        self.since, self.until = 0.0, None
        self.chunk_bytes = 65536
        self.counters = LinkCounters()
        self.sent: list[tuple[str, bytes, bool]] = []
        self.hold: asyncio.Event | None = None
        self.in_flight = 0
        self.most_in_flight: dict[str, int] = {}
        self._flying: dict[str, int] = {}
        self.will: object = None

    async def run(self, *, will: object = None, **_: object) -> None:
        self.will = will
        await asyncio.Event().wait()

    async def messages(self) -> AsyncIterator[Message]:
        await asyncio.Event().wait()
        yield Message("", b"")

    async def publish(self, topic, payload, *, retain=False, **_: object) -> None:
        if not self.connected:
            raise Transient("not connected")
        device = parse(topic).device or ""
        self._flying[device] = self._flying.get(device, 0) + 1
        self.most_in_flight[device] = max(self.most_in_flight.get(device, 0), self._flying[device])
        if self.hold is not None:
            await self.hold.wait()
        self._flying[device] -= 1
        self.sent.append((topic, payload, retain))

    def to(self, device: str, kind: Kind) -> list:
        """Control messages sent to a device, or the offers to the fleet that ask it."""
        if kind is Kind.OFFER:
            return [offer for offer in self.offers() if offer.asks(device)]
        topic = device_topic(FLEET, device, kind)
        return [messages.decode(p, messages.Wire) for t, p, _ in self.sent if t == topic]

    def offers(self) -> list[Offer]:
        """Offers to the fleet."""
        topic = broadcast_topic(FLEET, Kind.OFFER)
        return [messages.decode(p, Offer) for t, p, _ in self.sent if t == topic and p]

    def receipts(self, device: str) -> list[Receipt]:
        return [m for m in self.to(device, Kind.RECEIPT) if isinstance(m, Receipt)]

    def wants(self, device: str) -> list[Want]:
        return [m for m in self.to(device, Kind.RECEIPT) if isinstance(m, Want)]


class Bench:
    """Feeds messages to one coordinator."""

    def __init__(self, app: Coordinator, link: FakeLink) -> None:
        self.app = app
        self.link = link

    async def give(
        self, device: str, kind: Kind, payload: bytes, digest: str | None = None, index: int = 0
    ) -> None:
        await self.raw(device_topic(FLEET, device, kind, digest, None if digest is None else index), payload)

    async def raw(self, topic: str, payload: bytes) -> None:
        """Handle one message completely, with its acknowledgement."""
        acknowledged = asyncio.Event()
        await self.app.dispatcher.dispatch(Message(topic, payload, False, acknowledged.set))
        async with asyncio.timeout(10):
            await acknowledged.wait()
            await self.app.receipts.drained()

    async def online(self, *devices: str, windows: int = 10, **changes: object) -> None:
        for device in devices:
            state = State(
                status="online",
                device=device,
                roles=("train",),
                modalities={"acc": ModalityState(windows=(windows, 0))},
                windows=windows,
            ).model_copy(update=changes)
            await self.give(device, Kind.STATE, messages.encode(state))

    def refusals(self) -> dict[tuple[str, str], int]:
        """Counts on disk so far: (device, reason) -> count."""
        self.app.storage.ledger.save()
        return {(r["device"], r["reason"]): r["count"] for r in read(self.app.settings.state_dir)["refusals"]}

    async def until(self, what, seconds: float = 30.0):
        """Wait until ``what()`` is true, and return its value."""
        async with asyncio.timeout(seconds):
            while not (found := what()):  # noqa: ASYNC110 - any condition, of parts that have no event
                await asyncio.sleep(0.005)
        return found

    async def phase(self, phase: str) -> None:
        await self.until(lambda: self.app.driver.state.phase == phase)


@asynccontextmanager
async def bench(folder: Path, task=None, jobs=None, server=None, link=None, *, rng=None, **settings: object):
    """A running coordinator on a fake link, waiting for devices; deterministic without ``rng``."""
    link = link or FakeLink()
    async with open_coordinator(
        settings_for(folder, 1, **settings),
        task or tiny_task(),
        server or TinyServer(),
        jobs=jobs or TinyJobs(),
        link=link,
        rng=rng or random.Random("bench"),
    ) as app:
        await app.driver.open()
        async with beside(*app.services().values()):
            made = Bench(app, link)
            await made.until(lambda: app.driver.state.phase != "initialising" or bool(app.jobs.fail))
            yield made
