"""One MQTT connection over paho: from dialling to the end, never reconnected.

Every attempt gets a paho client of its own. So nothing is sent again from paho's memory (the application
sends again what has no receipt), and an acknowledgement can never meet a packet id of another connection.
The methods ``_on_...`` run in paho's network thread and only hand over to the event loop.
"""

import asyncio
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from protocol.errors import Reason, Refused, Transient
from runtime.inbox import Inbox, Message, post
from runtime.mqtt_words import TAKEN_OVER, ConnectFailed, dial_words, lost_words, refusal
from runtime.settings import MqttSettings

MAX_INCOMING_BYTES: Final = 1024 * 1024 + 4096
"""The largest packet taken: the protocol's largest chunk and its header (told to MQTT 5 brokers)."""
TOPIC_ROOM: Final = 512
"""Bytes of a packet that are not chunk: fixed header, topic (at most 277 bytes), packet id, properties."""


@dataclass(frozen=True)
class Will:
    """What the broker publishes for us when the connection ends without a goodbye."""

    topic: str
    payload: bytes
    retain: bool = True
    qos: int = 1


@dataclass
class LinkCounters:
    """Since the link was made. Bytes are topic, payload and headers of PUBLISH; not TCP, pings, PUBACK."""

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


class _Arrivals:
    """Acknowledges QoS 1 arrivals in their order, whatever order they are handled in (MQTT 5, 4.6)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: deque[list[Any]] = deque()  # [packet id, handled]

    def expect(self, mid: int) -> list[Any]:
        entry = [mid, False]
        with self._lock:
            self._order.append(entry)
        return entry

    def handled(self, entry: list[Any], client: paho.Client) -> None:
        with self._lock:
            entry[1] = True
            while self._order and self._order[0][1]:
                client.ack(self._order.popleft()[0], 1)


class Session:
    """One connection. Use it in the loop that made it: ``open``, ``subscribe``, ``publish``, ``close``."""

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        *,
        will: Will | None,
        credentials: tuple[str | None, str | None],
        tls: ssl.SSLContext | None,
        inbox: Inbox,
        counters: LinkCounters,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._mqtt5 = settings.protocol == "5"
        self._arrivals = _Arrivals()
        self._acks: dict[int, asyncio.Future[str | None]] = {}
        self._subacks: dict[int, asyncio.Future[list[ReasonCode] | None]] = {}
        self._slots = asyncio.Semaphore(settings.window)
        self._dialled: asyncio.Future[None] = self._loop.create_future()
        self._connack: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._gate = threading.Lock()  # guards _abandoned and the start of the network thread
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._last_ack = time.monotonic()
        self.max_packet_bytes = settings.max_packet_bytes
        self.session_present = False
        self.withheld = 0
        """QoS 1 messages that found no room; the broker delivers them again on the next connection."""
        self.ended_because = ""
        self.taken_over = False
        self.was_open = False
        self._client: paho.Client | None = self._make(client_id, will, credentials, tls)

    def _make(
        self,
        client_id: str,
        will: Will | None,
        credentials: tuple[str | None, str | None],
        tls: ssl.SSLContext | None,
    ) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if self._mqtt5 else self._settings.session_expiry_s == 0,
            protocol=paho.MQTTv5 if self._mqtt5 else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)  # the semaphore here bounds what is in flight
        client.connect_timeout = self._settings.connect_timeout_s
        if credentials[0] is not None:
            client.username_pw_set(*credentials)
        if tls is not None:
            client.tls_set_context(tls)
        if will is not None:
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        return client

    async def open(self) -> None:
        """Dial and wait for CONNACK.

        Raises:
            ConnectFailed: unreachable, refused or silent; the words name host and port.
        """
        limit = self._settings.connect_timeout_s
        # A thread of our own, because name look-up, connect and TLS handshake block; a daemon, so that a
        # resolver that hangs cannot hold up the end of the process.
        threading.Thread(target=self._dial, args=(self._client,), name="mqtt-dial", daemon=True).start()
        try:
            async with asyncio.timeout(2 * limit):
                await self._dialled
            async with asyncio.timeout(limit):
                await self._connack
        except TimeoutError:
            raise ConnectFailed(
                f"no answer from the broker at {self._settings.where} in {limit:g} s"
            ) from None

    def _dial(self, client: paho.Client) -> None:
        options: dict[str, Any] = {}
        if self._mqtt5:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = self._settings.session_expiry_s
            properties.ReceiveMaximum = min(65535, self._inbox.limit)
            properties.MaximumPacketSize = max(MAX_INCOMING_BYTES, self._settings.max_packet_bytes)
            options = {"clean_start": self._settings.session_expiry_s == 0, "properties": properties}
        try:
            client.connect(self._settings.host, self._settings.port, self._settings.keepalive_s, **options)
        except (OSError, ValueError) as error:  # ValueError: a host name that IDNA cannot encode
            post(self._loop, _fail, self._dialled, ConnectFailed(dial_words(self._settings, error)))
            return
        with self._gate:
            if self._abandoned:
                client.disconnect()
                return
            client.loop_start()
            self._thread = client._thread  # noqa: SLF001 - paho has no public way to see its thread die
        post(self._loop, _succeed, self._dialled, None)

    async def wait_ended(self, timeout_s: float) -> bool:
        """True when the connection is over. Looks after paho's thread too: a malformed packet can kill it."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            if self._thread is not None and not self._thread.is_alive():
                self.end("the network thread ended")
        return self._ended.is_set()

    def end(self, because: str) -> None:
        """Mark the connection as over: whoever waits for a PUBACK is told. The first reason stays."""
        if self._ended.is_set():
            return
        self.ended_because = because
        self._ended.set()
        _fail(self._connack, ConnectFailed(because))
        acks, self._acks = self._acks, {}
        for ack in acks.values():
            if not ack.done():
                ack.set_result(because)
        subacks, self._subacks = self._subacks, {}
        for suback in subacks.values():
            if not suback.done():
                suback.set_result(None)

    async def close(self, timeout_s: float = 2.0) -> None:
        """Say goodbye where possible, and end the network thread in any case. Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return
        for future in (self._dialled, self._connack):
            future.cancel()
        with self._gate:
            self._abandoned = True
        self.end("closed")
        if self._thread is not None:
            client.disconnect()
            await _thread_ended(self._thread, client, timeout_s)
        client.on_connect = client.on_disconnect = client.on_publish = None
        client.on_subscribe = client.on_message = None

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> list[str]:
        """Subscribe to all filters; returns words for each that the broker refused.

        Raises:
            ConnectFailed: the connection ended, or no SUBACK came in time.
        """
        if not filters:
            return []
        client = self._live()
        code, mid = client.subscribe([(name, qos) for name, qos in filters])
        if code != paho.MQTT_ERR_SUCCESS or mid is None:
            raise ConnectFailed(f"the connection to {self._settings.where} ended before SUBSCRIBE")
        future: asyncio.Future[list[ReasonCode] | None] = self._loop.create_future()
        self._subacks[mid] = future
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                codes = await future
        except TimeoutError:
            raise ConnectFailed(f"no SUBACK from {self._settings.where}") from None
        if codes is None:
            raise ConnectFailed(self.ended_because)
        pairs = zip(filters, codes, strict=False)
        return [f"{name}: {code_}" for (name, _), code_ in pairs if code_.is_failure]

    async def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool, timeout_s: float) -> None:
        """Send, and return at PUBACK (QoS 0: when it is written to the socket).

        Raises:
            Refused: TOO_LARGE, the packet is above the broker's limit.
            Transient: no PUBACK in time, refused by the broker, or the connection ended.
        """
        size = packet_bytes(topic, len(payload), qos, mqtt5=self._mqtt5)
        if size > self.max_packet_bytes:
            raise Refused(
                Reason.TOO_LARGE,
                f"a packet of {size} bytes for {topic}; the broker at {self._settings.where} takes "
                f"{self.max_packet_bytes}",
            )
        future: asyncio.Future[str | None] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                future = await self._send(topic, payload, qos=qos, retain=retain)
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
        self, topic: str, payload: bytes, *, qos: int, retain: bool
    ) -> asyncio.Future[str | None]:
        """Wait for a free slot and hand over to paho.

        The slot is given back at PUBACK or at the connection's end, never at the caller's timeout: the broker
        still counts the packet against its Receive Maximum.
        """
        await self._slots.acquire()
        try:
            info = self._live().publish(topic, payload, qos, retain)
        except BaseException:
            self._slots.release()
            raise
        if info.rc != paho.MQTT_ERR_SUCCESS:
            self._slots.release()
            raise Transient(f"{topic} was not published: {paho.error_string(info.rc)}")
        future: asyncio.Future[str | None] = self._loop.create_future()
        # on_publish reaches the loop by call_soon_threadsafe, so it cannot be seen before this line.
        self._acks[info.mid] = future
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def _end_if_stalled(self, waited_s: float) -> None:
        """A broker that acknowledges nothing for long would keep every slot for ever: connect anew."""
        patience = max(waited_s, 1.5 * self._settings.keepalive_s)
        if time.monotonic() - self._last_ack > patience:
            self.end(f"the broker at {self._settings.where} acknowledged nothing for {patience:g} s")

    def _live(self) -> paho.Client:
        if self._ended.is_set() or self._client is None:
            raise Transient(f"not connected to {self._settings.where}: {self.ended_because}")
        return self._client

    def _on_connect(self, _c: Any, _u: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        post(self._loop, self._connected, bool(flags.session_present), reason, properties)

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, reason: ReasonCode, _p: Any) -> None:
        post(self._loop, self._lost, bool(flags.is_disconnect_packet_from_server), reason)

    def _on_publish(self, _c: Any, _u: Any, mid: int, reason: ReasonCode, _p: Any) -> None:
        post(self._loop, self._acknowledged, mid, reason)

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, reasons: list[ReasonCode], _p: Any) -> None:
        post(self._loop, self._subscribed, mid, reasons)

    def _on_message(self, client: paho.Client, _u: Any, message: paho.MQTTMessage) -> None:
        self._counters.messages_in += 1
        topic_bytes = len(message._topic)  # noqa: SLF001 - `topic` decodes, and may raise
        self._counters.bytes_in += len(message.payload) + topic_bytes + 5
        entry = self._arrivals.expect(message.mid) if message.qos else None

        def acknowledge() -> None:
            if entry is not None and not self._ended.is_set():
                self._arrivals.handled(entry, client)

        try:
            topic = message.topic
        except UnicodeDecodeError:  # nobody can have meant it for us
            self._counters.dropped += 1
            acknowledge()
            return
        again = self._ended.is_set if entry is not None else None
        if not self._inbox.offer(
            Message(topic, bytes(message.payload), message.retain, acknowledge, again), self._loop
        ):
            self._counters.dropped += 1
            if entry is not None:
                self.withheld += 1

    def _connected(self, present: bool, reason: ReasonCode, limits: Any) -> None:  # noqa: FBT001 - a callback
        if reason.is_failure:
            _fail(self._connack, refusal(self._settings, reason))
            return
        if getattr(limits, "MaximumQoS", 1) < 1:
            words = f"the broker at {self._settings.where} offers QoS 0 only; lichen needs QoS 1"
            _fail(self._connack, ConnectFailed(words, patient=True))
            return
        self.session_present = present
        limit = getattr(limits, "MaximumPacketSize", None)
        if limit is not None:
            self.max_packet_bytes = int(limit)
        window = min(getattr(limits, "ReceiveMaximum", 65535), self._settings.window)
        self._slots = asyncio.Semaphore(window)
        self._last_ack = time.monotonic()
        self.was_open = True
        _succeed(self._connack, None)

    def _lost(self, from_broker: bool, reason: ReasonCode) -> None:  # noqa: FBT001 - a callback
        self.taken_over = from_broker and reason.value == TAKEN_OVER
        before_connack = not self._connack.done()
        self.end(lost_words(self._settings, reason, from_broker=from_broker, before_connack=before_connack))

    def _acknowledged(self, mid: int, reason: ReasonCode) -> None:
        self._last_ack = time.monotonic()
        future = self._acks.pop(mid, None)
        if future is not None and not future.done():
            future.set_result(f"the broker says {reason}" if reason.is_failure else None)

    def _subscribed(self, mid: int, reasons: list[ReasonCode]) -> None:
        future = self._subacks.pop(mid, None)
        if future is not None and not future.done():
            future.set_result(reasons)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: it may be that nobody waits any more


def _succeed(future: asyncio.Future[None], result: None) -> None:
    if not future.done():
        future.set_result(result)


async def _thread_ended(thread: threading.Thread, client: paho.Client, timeout_s: float) -> None:
    """Wait for the network thread; halfway, cut the socket under a peer that takes no goodbye."""
    started = time.monotonic()
    cut = False
    while thread.is_alive():
        waited = time.monotonic() - started
        if waited > timeout_s:
            return
        if waited > timeout_s / 2 and not cut:
            cut = True
            _cut(client)
        await asyncio.sleep(0.005)


def _cut(client: paho.Client) -> None:
    sock: Any = client.socket()
    if sock is not None:
        try:
            sock.shutdown(2)
        except OSError:
            return  # it was closed between the two lines
