"""Answers ``Fetch``: chunks on ``down/blob``, fair between devices, a bounded number in flight.

Limits (:mod:`coordinator.messaging.fetch_queue`): requests beyond a device's queue are dropped (it asks
again); devices take turns, one chunk each; at most ``window`` chunks are in flight to one device, and
``window * 4`` in all. A chunk that the broker does not accept is dropped as well.
"""

import asyncio
from collections.abc import Callable, Container, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

import structlog

from coordinator.messaging.fetch_queue import Chunk, Turns
from coordinator.messaging.log_rate_limit import LogRateLimiter, more
from coordinator.messaging.sender import Sender
from coordinator.objects.blobs import BlobStorage
from protocol.base import Wire
from protocol.errors import LichenError, Transient
from protocol.frames.chunks import chunk_count
from protocol.messages import MAX_URL, Command, Fetch, decode
from protocol.topics import Kind, Route, device_topic
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.concurrency.threads import Threads
from runtime.metrics import MetricFamily, counter
from runtime.mqtt.link import Message
from runtime.pacing import TokenBuckets

log = structlog.get_logger(__name__)

_DEVICES_AT_ONCE: Final = 4
_CHUNK_TIMEOUT_S: Final = 20.0
_THREADS: Final = 8
"""Of its own: while a bucket is slow, other work in threads goes on."""
_DAY_S: Final = 86400.0
_STRANGERS: Final = "(strangers)"


class Links(Protocol):
    """URLs from which devices download blobs."""

    @property
    def above_bytes(self) -> int:
        """Smaller blobs are sent in chunks."""

    def url(self, digest: str) -> str | None:
        """A URL of a blob, which is a secret; None: there is none."""


class FetchBudget:
    """Bytes that a device may fetch a day; unregistered devices share one budget.

    Args:
        device_bytes: of one device, refilled evenly over a day; 0: no limit.
        known: the registry.
    """

    def __init__(self, device_bytes: int, known: Container[str]) -> None:
        self._known = known
        self._buckets = TokenBuckets(device_bytes, device_bytes / _DAY_S) if device_bytes else None
        self.words = f"it may fetch {device_bytes} bytes a day (fetch.device_bytes_a_day); this is dropped"

    def is_stranger(self, device: str) -> bool:
        """Whether it is not registered."""
        return device not in self._known

    def take(self, device: str, size: int, now: float) -> bool:
        """Whether it may fetch so many more bytes.

        Args:
            device: the requester.
            size: bytes.
            now: monotonic seconds.
        """
        if self._buckets is None:
            return True
        return self._buckets.take(_STRANGERS if self.is_stranger(device) else device, now, size)


@dataclass(eq=False, repr=False)
class BlobServer:
    """Serves the blobs of one store.

    Args:
        blobs: the store.
        post: sends to devices.
        say: queues an answer to a device.
        window: chunks in flight to one device.
        clock: the time.
        budget: bytes a day; None: no limit.
        voice: limits the log lines about a device.
        may_fetch: whether a device may fetch a stored blob; called in a thread.
        links: the URLs of blobs; None: there are none.
    """

    blobs: BlobStorage
    post: Sender
    say: Callable[[str, Kind, Wire], None]
    window: int
    clock: Clock
    budget: FetchBudget | None = None
    voice: LogRateLimiter | None = None
    _: KW_ONLY
    may_fetch: Callable[[str, str], bool]
    links: Links | None = None

    def __post_init__(self) -> None:
        self._budget = self.budget or FetchBudget(0, set())
        self._voice = self.voice or LogRateLimiter(self.clock.now)
        self.asked_at = self.clock.now()
        """When each device last asked for a stored blob."""
        self._threads = Threads("blobs", _THREADS)
        self._turns = Turns()
        self._in_flight: dict[str, int] = {}
        self._more = Signal()
        self.dropped = 0
        self.withheld = 0
        """Requests for blobs that belong to another device."""
        self.over_budget = 0
        """Requests beyond a device's bytes a day."""
        self.linked = 0
        """Blobs for which a device was given a URL."""

    async def on_fetch(self, route: Route, message: Message) -> bool:
        """Handle the payload of ``up/fetch``.

        Returns:
            False: it is acknowledged when this returns.

        Raises:
            Refused: it is malformed.
        """
        await self.request(route.device or "", decode(message.payload, Fetch))
        return False

    async def request(self, device: str, fetch: Fetch) -> None:
        """Queue the requested chunks; without an answer of the store, the device asks again."""
        try:
            await self._queue(device, fetch)
        except (Transient, OSError) as error:
            self.dropped += fetch.count
            if (unsaid := self._voice.unsaid(device)) is not None:
                log.warning("fetch_dropped", device=device, why=str(error), **more(unsaid))

    async def _queue(self, device: str, fetch: Fetch) -> None:
        if not await self._threads.run(self._is_there_for, device, fetch.digest):
            self._no_such_blob(device, fetch.digest)
            return
        self.asked_at = self.clock.now()
        # The requested size, not our link's own: both sides must cut the blob at the same places.
        chunk_bytes = fetch.chunk_bytes
        size = await self._threads.run(self.blobs.size, fetch.digest)
        if fetch.download and await self._give_url(device, fetch.digest, size):
            return
        last = min(fetch.first + fetch.count, chunk_count(size, chunk_bytes))
        stranger = self._budget.is_stranger(device)
        for index in range(fetch.first, last):
            chunk = (fetch.digest, index, chunk_bytes)
            if self._turns.has(device, chunk):
                continue
            if not self._turns.has_room(device, stranger=stranger):
                self.dropped += last - index
                break
            if not self._budget.take(device, min(chunk_bytes, size - index * chunk_bytes), self.asked_at):
                self._say_over_budget(device)
                break
            self._turns.put(device, chunk, stranger=stranger)
        self._more.set()

    async def _give_url(self, device: str, digest: str, size: int) -> bool:
        """Answer with a URL, if the blob is large enough for one and the device may fetch so much."""
        if self.links is None or size <= self.links.above_bytes:
            return False
        url = await self._threads.run(self.links.url, digest)
        if url is None or len(url) > MAX_URL:
            return False
        if self._budget.take(device, size, self.asked_at):
            self.linked += 1
            self.say(device, Kind.CMD, Command(command="download", digest=digest, url=url))
        else:
            self._say_over_budget(device)
        return True

    def _say_over_budget(self, device: str) -> None:
        self.over_budget += 1
        if (unsaid := self._voice.unsaid(device)) is not None:
            log.warning("fetch_over_budget", device=device, why=self._budget.words, **more(unsaid))

    def _is_there_for(self, device: str, digest: str) -> bool:
        if not self.blobs.has(digest):
            return False
        if self.may_fetch(device, digest):
            return True
        self.withheld += 1
        if (unsaid := self._voice.unsaid(device)) is not None:
            log.info("blob_withheld", device=device, digest=digest, **more(unsaid))
        return False

    async def run(self) -> None:
        """Serve for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._more.wait()
                while (turn := self._next()) is not None:
                    device, chunk = turn
                    self._in_flight[device] = self._in_flight.get(device, 0) + 1
                    group.create_task(self._send(device, chunk))

    def _next(self) -> tuple[str, Chunk] | None:
        """The next device in turn that may have one more chunk in flight."""
        if sum(self._in_flight.values()) >= self.window * _DEVICES_AT_ONCE:
            return None
        return self._turns.take(self._in_flight, self.window)

    async def _send(self, device: str, chunk: Chunk) -> None:
        digest, index, chunk_bytes = chunk
        try:
            data = await self._threads.run(self.blobs.read_chunk, digest, index, chunk_bytes)
            topic = device_topic(self.post.fleet, device, Kind.DOWN_BLOB, digest, index)
            await self.post.link.publish(topic, data, timeout_s=_CHUNK_TIMEOUT_S)
        except (KeyError, OSError) as error:
            if (unsaid := self._voice.unsaid(device)) is not None:
                log.warning("chunk_unreadable", device=device, digest=digest, why=str(error), **more(unsaid))
            self._no_such_blob(device, digest)
        except LichenError as error:  # the device is away, or the requested chunk exceeds a packet
            self.dropped += 1
            if (unsaid := self._voice.unsaid(device)) is not None:
                log.info("chunk_dropped", device=device, why=str(error), **more(unsaid))
        finally:
            left = self._in_flight[device] - 1
            if left:
                self._in_flight[device] = left
            else:
                del self._in_flight[device]
            self._more.set()

    def _no_such_blob(self, device: str, digest: str) -> None:
        self.say(device, Kind.CMD, Command(command="no_such_blob", digest=digest))

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def metrics(self) -> Iterable[MetricFamily]:
        """Counts of refused requests."""
        yield counter("lichen_blobs_withheld", "Requests for blobs of another device", self.withheld)
        yield counter(
            "lichen_fetches_over_budget", "Requests beyond a device's bytes a day", self.over_budget
        )
        yield counter("lichen_blobs_linked", "URLs given to devices instead of chunks", self.linked)
