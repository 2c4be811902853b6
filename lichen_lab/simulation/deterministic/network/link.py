"""``runtime.mqtt.link.Link`` over a simulated broker: the same interface and waits, in virtual time."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from lichen_lab.simulation.deterministic.machine.process_life import LIFE
from lichen_lab.simulation.deterministic.network.broker import SimBroker
from lichen_lab.simulation.deterministic.network.connection import Connection
from lichen_lab.simulation.deterministic.network.session import Packet
from protocol.errors import Reason, Refused, Transient
from runtime.mqtt.inbox import Inbox, Message
from runtime.mqtt.link import LinkCounters, OnConnect, Will, WillNow
from runtime.mqtt.session import TOPIC_ROOM, packet_bytes
from runtime.settings.load import MqttSettings

_STABLE_S: Final = 10.0
_LOST_PATIENCE: Final = 3


class SimLink:
    """A connection to the simulated broker that comes back.

    Made like ``runtime.mqtt.link.Link`` (``functools.partial(SimLink, broker=broker)`` stands in for the
    class),
    within the life it belongs to: when that ends, the connection vanishes.

    Args:
        settings: chunk size, window, waits.
        client_id: stable.
        filters: (topic filter, QoS).
        ping_topic: with one, a link on which nothing passes is noticed by ``ping_s`` and ``ping_timeout_s``.
        max_queued: bound of the inbound queue, and our Receive Maximum.
        spare_bytes: room for brokers that overrun it.
        broker: where to.
    """

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        *,
        filters: Sequence[tuple[str, int]] = (),
        ping_topic: str | None = None,
        max_queued: int = 256,
        spare_bytes: int = 32 * 1024 * 1024,
        broker: SimBroker,
    ) -> None:
        self.settings = settings
        self.client_id = client_id
        self.filters = tuple(filters)
        self.ping_topic = ping_topic
        self.counters = LinkCounters()
        self.why = "not started"
        self.since = time.time()
        self.until: float | None = None
        self.resumed = False
        """Whether the broker kept our session when we came."""
        self._broker = broker
        self._inbox = Inbox(max_queued, spare_bytes)
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._over = asyncio.Event()
        self._stop = asyncio.Event()
        self._pubacks: set[asyncio.Future[None]] = set()
        self._slots = asyncio.Semaphore(settings.window)
        self._was_up = False
        self._random = random.Random(f"link {client_id} {broker.weather.seed}")  # noqa: S311 - jitter from a seed
        self.life = LIFE.get()
        if self.life is not None:
            self.life.on_end.append(lambda _: self.vanish())

    @property
    def connected(self) -> bool:
        """True from the SUBACKs to the end of the connection."""
        return self._up.is_set()

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits one packet."""
        return max(1024, min(self.settings.chunk_bytes, self.settings.max_packet_bytes - TOPIC_ROOM))

    async def wait_connected(self) -> None:
        """Return once connected."""
        await self._up.wait()

    def messages(self) -> AsyncIterator[Message]:
        """What arrives, in order, for ever; one consumer, which acknowledges every message."""
        return self._inbox.stream()

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Send and return at PUBACK.

        Raises:
            Refused: TOO_LARGE, above the packet limit.
            Transient: not connected, the connection ended, or no PUBACK in ``timeout_s``.
        """
        connection = self._connection
        if connection is None or not self._up.is_set():
            raise Transient(f"{topic} was not published: {self.why}")
        size = packet_bytes(topic, len(payload), qos, mqtt5=self.settings.protocol == "5")
        if size > self.settings.max_packet_bytes:
            raise Refused(
                Reason.TOO_LARGE,
                f"a packet of {size} bytes for {topic}; at most {self.settings.max_packet_bytes} are taken",
            )
        loop = self._broker.loop
        puback: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _expire, puback, f"no PUBACK for {topic} in {timeout_s:g} s")
        try:
            await self._send(connection, Packet(topic, payload, qos, retain), puback)
        finally:
            timer.cancel()
        self.counters.messages_out += 1
        self.counters.bytes_out += size

    async def _send(self, connection: Connection, packet: Packet, puback: "asyncio.Future[None]") -> None:
        """Wait for a slot, send, wait for PUBACK."""
        async with self._slots:
            if puback.done() or not connection.open:
                puback.cancel()
                raise Transient(f"{packet.topic} was not published: {self.why}")
            if self.life is not None:
                self.life.moment(f"publish {packet.topic}")
            self._pubacks.add(puback)
            try:
                connection.send_up(packet, puback)
                await puback
            finally:
                self._pubacks.discard(puback)

    def arrived(self, connection: Connection, packet: Packet) -> None:
        """A message came."""
        payload = packet.payload
        weather = self._broker.weather
        if weather.strikes("corrupt", weather.corrupt):
            payload = weather.damaged(payload)
        self.counters.messages_in += 1
        self.counters.bytes_in += packet_bytes(packet.topic, len(payload), packet.qos, mqtt5=True)
        message = Message(
            packet.topic,
            payload,
            packet.retain,
            lambda: self._acknowledge(connection, packet),
            (lambda: not connection.open) if packet.qos else None,
        )
        self._broker.say("delivered", self.client_id, packet.topic, payload)
        if not self._inbox.offer(message, self._broker.loop):
            self.counters.dropped += 1
            if packet.qos:
                connection.break_off("a message had no room; the broker is asked to deliver it again")

    def _acknowledge(self, connection: Connection, packet: Packet) -> None:
        if self.life is None or not self.life.dead:
            connection.acknowledge(packet)

    def ended(self, connection: Connection, because: str) -> None:
        """The connection is over: whoever waits for an answer is told."""
        if connection is not self._connection:
            return
        self._state(because)
        self._up.clear()
        self._over.set()
        for puback in list(self._pubacks):
            _expire(puback, because)

    def vanish(self) -> None:
        """The process is gone, without a word."""
        if self._connection is not None:
            self._connection.vanish(power=self.life is not None and self.life.power)
        self._up.clear()

    def reconnect(self, because: str) -> None:
        """End the connection, if there is one, and connect anew."""
        if self._connection is not None:
            self._connection.break_off(because)

    async def close(self) -> None:
        """Make :meth:`run` say goodbye to the broker and return."""
        self._stop.set()
        self._over.set()

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Keep connected until cancelled (or :meth:`close`); then disconnect in order.

        Args:
            on_connect: awaited after every connect.
            will: published by the broker when we vanish; a callable is asked at each connect.
        """
        failures = 0
        while not self._stop.is_set():
            started = self._broker.loop.time()
            try:
                await self._live(on_connect, will() if callable(will) else will)
                lasted = self._broker.loop.time() - started > _STABLE_S
                failures = 0 if lasted else min(failures + 1, _LOST_PATIENCE)
            except Transient as error:
                self._state(str(error))
                failures += 1
            finally:
                self._leave()
            if not self._stop.is_set():
                await self._pause(failures)

    async def _live(self, on_connect: OnConnect | None, will: Will | None) -> None:
        """One connection, from dialling to its end."""
        broker, settings = self._broker, self.settings
        self._state(f"connecting to {settings.where}")
        await self._dial()
        connection = Connection(
            broker,
            self,
            self.client_id,
            receive_maximum=self._inbox.limit,
            keepalive_s=settings.keepalive_s,
            patience_s=self._patience(),
        )
        self._connection = connection
        self._over.clear()
        self._slots = asyncio.Semaphore(settings.window)
        self.resumed = broker.open(connection, self.client_id, will, expiry_s=settings.session_expiry_s)
        if self.resumed:
            self._inbox.forget_repeated()
        if connection.session is not None:
            broker.subscribe(connection.session, self.filters)
        self._up.set()
        self.counters.reconnects += self._was_up
        self._was_up = True
        self._state(f"connected to {settings.where}")
        greeting = asyncio.ensure_future(_greet(connection, on_connect))
        try:
            await self._over.wait()
        finally:
            greeting.cancel()
            await asyncio.wait([greeting])
        if not greeting.cancelled():
            greeting.result()

    def _patience(self) -> float:
        """After how many silent seconds we give a connection up."""
        settings, keepalive = self.settings, 1.5 * self.settings.keepalive_s
        if self.ping_topic is None or not settings.ping_s:
            return keepalive
        return min(keepalive, settings.ping_s + settings.ping_timeout_s)

    async def _dial(self) -> None:
        """CONNECT and CONNACK; three hops."""
        broker, limit = self._broker, self.settings.connect_timeout_s
        blocked = broker.blocked.get(self.client_id, {})
        if max(blocked.values(), default=0.0) > broker.loop.time():
            await asyncio.sleep(limit)
            raise Transient(f"no answer from the broker at {self.settings.where} in {limit:g} s")
        await asyncio.sleep(3 * broker.weather.takes())
        if not broker.up:
            raise Transient(f"the broker at {self.settings.where} is not there: connection refused")

    def _leave(self) -> None:
        self._up.clear()
        connection, self._connection = self._connection, None
        if connection is not None and not (self.life is not None and self.life.dead):
            connection.say_goodbye()
        for puback in list(self._pubacks):
            _expire(puback, self.why)

    async def _pause(self, failures: int) -> None:
        """Exponential back-off with full jitter."""
        settings = self.settings
        ceiling = min(settings.backoff_max_s, settings.backoff_min_s * 2.0 ** min(failures, 30))
        wait = self._random.uniform(0, ceiling)
        self.until = time.time() + wait
        try:
            async with asyncio.timeout(wait):
                await self._stop.wait()
        except TimeoutError:
            return

    def _state(self, why: str) -> None:
        self.why, self.since, self.until = why, time.time(), None


async def _greet(connection: Connection, on_connect: OnConnect | None) -> None:
    if on_connect is None:
        return
    try:
        await on_connect()
    except Refused:
        return  # as the real link: logged, and no reason to connect anew
    except Transient as error:
        connection.break_off(f"the greeting failed: {error}")


def _expire(puback: "asyncio.Future[None]", because: str) -> None:
    if not puback.done():
        puback.set_exception(Transient(because))
        puback.exception()  # who waits for a slot looks at it later, or never
