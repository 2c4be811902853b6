"""One MQTT connection from dialling to its end, without reconnects: limits, slots in flight, replies."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from paho.mqtt.reasoncodes import ReasonCode

from protocol.errors import Reason, Refused, Transient
from runtime.clock import Clock, SystemClock
from runtime.mqtt.connection import Arrival, Connect, ConnectOptions, fail, succeed
from runtime.mqtt.errors import (
    TAKEN_OVER,
    ConnectFailed,
    is_shared,
    limit_words,
    lost_words,
    no_shared_words,
    refusal,
    shared_refused_words,
)
from runtime.mqtt.flow_control import FlowControl, is_bulk
from runtime.mqtt.inbox import Inbox, Message
from runtime.mqtt.keepalive import Ask, KeepaliveMonitor
from runtime.mqtt.paho_connection import PahoConnection
from runtime.settings.load import MqttSettings

TOPIC_ROOM: Final = 512
"""Bytes of a packet besides its chunk: fixed header, topic (at most 277 bytes), packet id, properties."""


@dataclass
class LinkCounters:
    """Counts since the link was made. Bytes: topic, payload, headers of PUBLISH; not TCP, pings, PUBACK."""

    bytes_out: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    messages_in: int = 0
    dropped: int = 0
    reconnects: int = 0


def packet_bytes(topic: str, payload_bytes: int, qos: int, *, mqtt5: bool) -> int:
    """Size of a PUBLISH packet on the wire (MQTT 5, 3.3), without topic alias or properties."""
    rest = 2 + len(topic.encode()) + (2 if qos else 0) + (1 if mqtt5 else 0) + payload_bytes
    length_bytes = 1 + (rest >= 1 << 7) + (rest >= 1 << 14) + (rest >= 1 << 21)
    return 1 + length_bytes + rest


class Session:
    """One connection. Use it in the loop that made it: ``open``, ``subscribe``, ``publish``, ``close``.

    Args:
        settings: address and limits.
        identity: client id and credentials.
        inbox: receives messages.
        counters: of the link.
        connect: makes the connection below.
        clock: measures the waits for the broker.
    """

    def __init__(
        self,
        settings: MqttSettings,
        identity: ConnectOptions,
        inbox: Inbox,
        counters: LinkCounters,
        *,
        connect: Connect = PahoConnection,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._clock = clock or SystemClock()
        self._connection = connect(settings, identity, inbox.limit, self)
        self._acks: dict[int, tuple[float, asyncio.Future[str | None]]] = {}
        self._subacks: dict[int, asyncio.Future[list[ReasonCode] | None]] = {}
        self._gate = self._new_gate(settings.window + 1)
        self._connack: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._watch = KeepaliveMonitor(settings, self._clock)
        self._pinging: asyncio.Task[None] | None = None
        self.max_packet_bytes = settings.max_packet_bytes
        self.session_present = False
        self.shared_available = settings.protocol == "5"
        """Whether the broker offers shared subscriptions, which MQTT 3.1.1 does not know."""
        self.withheld = 0
        """QoS 1 messages that found no room; the broker delivers them again on the next connection."""
        self.ended_because = ""
        self.was_open = False
        self.taken_over = False

    def _new_gate(self, slots: int) -> FlowControl:
        set_ = self._settings
        return FlowControl(slots, set_.window, set_.max_publishes_per_s, set_.max_bytes_per_s)

    @property
    def closed_by_peer(self) -> bool:
        """Whether the broker ended it in order with no reason, as when another client takes the session."""
        return self._connection.closed_by_peer

    async def open(self) -> None:
        """Dial and wait for CONNACK.

        Raises:
            ConnectFailed: unreachable, refused or silent; the message names host and port.
        """
        limit = self._settings.connect_timeout_s
        try:
            async with asyncio.timeout(2 * limit):  # paho bounds connect and handshake by `limit` each
                await self._connection.dial()
            async with asyncio.timeout(limit):
                await self._connack
        except TimeoutError:
            words = f"no answer from the broker at {self._settings.where} in {limit:g} s"
            raise ConnectFailed(words) from None

    async def wait_ended(self) -> bool:
        """Wait until the next check is due; True when the connection is over."""
        try:
            async with asyncio.timeout(self._watch.interval_s):
                await self._ended.wait()
        except TimeoutError:
            if self._connection.dead:
                self.end(f"the connection to the broker at {self._settings.where} broke off")
        return self._ended.is_set()

    def end(self, because: str) -> None:
        """Mark the connection as over and fail all waits for replies. The first reason stays."""
        if self._ended.is_set():
            return
        self.ended_because = because
        self._ended.set()
        self._gate.close()
        fail(self._connack, ConnectFailed(because))
        acks, self._acks = self._acks, {}
        for _, ack in acks.values():
            ack.set_result(because)
        subacks, self._subacks = self._subacks, {}
        for suback in subacks.values():
            if not suback.done():
                suback.set_result(None)

    async def close(self) -> None:
        """Disconnect, in order if possible."""
        self.end("closed")
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.wait([self._pinging])
        await self._connection.close()

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> list[str]:
        """Subscribe to all filters; returns a message for each that the broker refused.

        Raises:
            ConnectFailed: the connection ended, no SUBACK came in time, or the broker has no shared
                subscriptions, or refuses one.
        """
        if not filters:
            return []
        if not self.shared_available and any(is_shared(name) for name, _ in filters):
            raise ConnectFailed(no_shared_words(self._settings), patient=True)
        future: asyncio.Future[list[ReasonCode] | None] = self._loop.create_future()
        self._subacks[self._connection.subscribe(filters)] = future
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                codes = await future
        except TimeoutError:
            raise ConnectFailed(f"no SUBACK from the broker at {self._settings.where}") from None
        if codes is None:
            raise ConnectFailed(self.ended_because)
        refused = {name: code for (name, _), code in zip(filters, codes, strict=False) if code.is_failure}
        for name, code in refused.items():
            if is_shared(name):
                raise ConnectFailed(shared_refused_words(self._settings, name, code), patient=True)
        return [f"{name}: {code}" for name, code in refused.items()]

    async def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool, timeout_s: float) -> None:
        """Send, and return at PUBACK (QoS 0: when it is written to the socket).

        Raises:
            Refused: TOO_LARGE, the packet is above the broker's limit.
            Transient: no PUBACK in time, refused by the broker, or the connection ended.
        """
        size = packet_bytes(topic, len(payload), qos, mqtt5=self._settings.protocol == "5")
        if size > self.max_packet_bytes:
            raise Refused(
                Reason.TOO_LARGE,
                f"a packet of {size} bytes for {topic}; the broker at {self._settings.where} takes at most "
                f"{self.max_packet_bytes}",
            )
        future: asyncio.Future[str | None] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                future = await self._send(topic, payload, size, qos=qos, retain=retain)
                failed = await asyncio.shield(future)
        except TimeoutError:
            if future is not None:
                self._end_if_stalled(timeout_s)
            raise Transient(f"no PUBACK for {topic} from {self._settings.where} in {timeout_s:g} s") from None
        if failed is not None:
            raise Transient(f"{topic} was not published: {failed}")
        self._counters.messages_out += 1
        self._counters.bytes_out += size

    async def _send(
        self, topic: str, payload: bytes, size: int, *, qos: int, retain: bool
    ) -> "asyncio.Future[str | None]":
        """Wait for a free slot and the rate limits, and pass the packet to paho.

        The slot is released at PUBACK or at the connection's end, never at the caller's timeout: until then
        the broker counts the packet against its Receive Maximum.
        """
        bulk = is_bulk(topic, len(payload))
        await self._gate.enter(size, bulk=bulk)
        try:
            if self._ended.is_set():
                raise Transient(f"{topic} was not published: {self.ended_because}")  # noqa: TRY301 - releases the slot
            mid = self._connection.publish(topic, payload, qos=qos, retain=retain)
        except BaseException:
            self._gate.leave(bulk=bulk)
            raise
        future: asyncio.Future[str | None] = self._loop.create_future()
        # the loop calls `acknowledged`, so it cannot have come before this line
        self._acks[mid] = self._clock.now(), future
        future.add_done_callback(lambda _: self._gate.leave(bulk=bulk))
        return future

    def _end_if_stalled(self, waited_s: float) -> None:
        """Reconnect if the broker acknowledges nothing for long: it would hold every slot for ever."""
        patience = max(waited_s, 1.5 * self._settings.keepalive_s)
        if self._watch.silent_for(patience):
            self.end(f"the broker at {self._settings.where} acknowledged nothing for {patience:g} s")

    def look(self, ping_topic: str | None) -> str:
        """Check whether the link is alive; ping after silence. Returns a message for ``why``, or ""."""
        if len(self._inbox):  # the broker may be waiting for this client
            self._watch.heard()
        oldest = min((since for since, _ in self._acks.values()), default=None)
        todo = self._watch.look(oldest) if ping_topic is not None else Ask.NOTHING
        if isinstance(todo, str):
            self.end(todo)
        elif todo is Ask.PING and ping_topic is not None:
            self._pinging = self._loop.create_task(self._ping(ping_topic))
        return self._watch.quiet

    async def _ping(self, topic: str) -> None:
        """Its PUBACK counts as a sign of life; no error if it cannot be sent: the silence decides."""
        try:
            await self.publish(topic, b"", qos=1, retain=False, timeout_s=self._settings.ping_timeout_s)
        except Transient:
            return

    def connected(self, present: bool, reason: ReasonCode, limits: Any) -> None:  # noqa: FBT001 - see Events
        """CONNACK came."""
        no = refusal(self._settings, reason) if reason.is_failure else None
        if no is None and (words := limit_words(self._settings, limits, TOPIC_ROOM)):
            no = ConnectFailed(words, patient=True)
        if no is not None:
            fail(self._connack, no)
            self.end(str(no))  # before paho reports the socket's end, which gives less detail
            return
        self.session_present = present
        self.max_packet_bytes = int(getattr(limits, "MaximumPacketSize", self.max_packet_bytes))
        self._gate = self._new_gate(int(getattr(limits, "ReceiveMaximum", 65535)))
        self.shared_available &= bool(getattr(limits, "SharedSubscriptionAvailable", 1))
        self._watch.acked()
        self.was_open = True
        succeed(self._connack)

    def lost(self, from_broker: bool, reason: ReasonCode) -> None:  # noqa: FBT001 - see Events
        """The connection is over."""
        self.taken_over = from_broker and reason.value == TAKEN_OVER
        before = not self._connack.done()
        self.end(lost_words(self._settings, reason, from_broker=from_broker, before_connack=before))

    def acknowledged(self, mid: int, reason: ReasonCode) -> None:
        """PUBACK came."""
        self._watch.acked()
        _, future = self._acks.pop(mid, (0.0, None))
        if future is not None:
            future.set_result(f"the broker says {reason}" if reason.is_failure else None)

    def subscribed(self, mid: int, reasons: list[ReasonCode]) -> None:
        """SUBACK came."""
        self._watch.heard()
        future = self._subacks.pop(mid, None)
        if future is not None and not future.done():
            future.set_result(reasons)

    def arrived(self, arrival: Arrival) -> None:
        """A message came; in the network thread."""
        self._watch.heard()
        self._counters.messages_in += 1
        self._counters.bytes_in += arrival.wire_bytes
        if arrival.topic is None:  # not UTF-8: it cannot be meant for this client
            self._counters.dropped += 1
            arrival.acknowledge()
            return
        again = self._ended.is_set if arrival.qos else None
        now = self._clock.now()
        message = Message(arrival.topic, arrival.payload, arrival.retain, arrival.acknowledge, again, now)
        if not self._inbox.offer(message, self._loop):
            self._counters.dropped += 1
            self.withheld += 1 if arrival.qos else 0
