"""The paho connection: client, network thread, callbacks, and their end.

Every connection gets a paho client of its own, so nothing is sent again from paho's memory, and an
acknowledgement never meets a packet id of another connection. Callbacks run in paho's network thread and only
hand over: all of :class:`Events` but ``arrived`` are called in the event loop.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from protocol.errors import Transient
from runtime.mqtt.connection import AckOrder, Arrival, ConnectOptions, Events, fail, no_ack, succeed
from runtime.mqtt.errors import ConnectFailed, dial_words
from runtime.mqtt.inbox import post
from runtime.settings.load import MqttSettings

MAX_INCOMING_BYTES: Final = 1024 * 1024 + 4096
"""The largest packet accepted: the protocol's largest chunk and its header (sent to MQTT 5 brokers)."""


_AHEAD_BYTES: Final = 64 * 1024
_PACKETS: Final = 64
"""Packets that are read before others are sent."""


class _ReadAhead:
    """A socket that reads ahead: paho asks for a packet's head byte by byte."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._data = b""
        self._at = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, size: int) -> bytes:
        """At most so many bytes; the errors are those of the socket."""
        if self._at == len(self._data):
            if size >= _AHEAD_BYTES:
                return bytes(self._sock.recv(size))
            self._data, self._at = self._sock.recv(_AHEAD_BYTES), 0
        part = self._data[self._at : self._at + size]
        self._at += len(part)
        return part

    def pending(self) -> int:
        """Bytes that a select would not see; of a TLS connection also those that it has decrypted."""
        inner = getattr(self._sock, "pending", None)
        return len(self._data) - self._at + (0 if inner is None else inner())


class _Client(paho.Client):
    """A paho client that reads many packets at a time, and notes whether the peer closed it in order."""

    closed_by_peer = False

    def _create_socket(self) -> Any:
        return _ReadAhead(super()._create_socket())

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Handle the packets that have arrived, without a select for each of them."""
        for _ in range(_PACKETS):
            code = super().loop_read(max_packets)
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS or not isinstance(self._sock, _ReadAhead):
                break
            if not self._sock.pending():
                break
        return code

    def _sock_recv(self, bufsize: int) -> bytes:
        data = super()._sock_recv(bufsize)
        if not data:
            self.closed_by_peer = True
        return data


def _close_sockets(client: _Client) -> None:
    """Close the connection's socket and those that paho wakes its thread with; no thread may use them."""
    client._reset_sockets()  # noqa: SLF001 - else they stay open until the client is garbage


class PahoConnection:
    """One paho client (:class:`runtime.mqtt.connection.Connection`), made and used in an event loop."""

    def __init__(
        self, settings: MqttSettings, identity: ConnectOptions, receive_maximum: int, events: Events
    ) -> None:
        self._settings = settings
        self._receive_maximum = receive_maximum
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._mqtt5 = settings.protocol == "5"
        self._gate = threading.Lock()  # guards _closed against the start of the network thread
        self._closed = False
        self._thread: threading.Thread | None = None
        self._client = self._make(identity)
        self._order = AckOrder()

    def _make(self, identity: ConnectOptions) -> _Client:
        client = _Client(
            CallbackAPIVersion.VERSION2,
            identity.client_id,
            clean_session=None if self._mqtt5 else self._settings.session_expiry_s == 0,
            protocol=paho.MQTTv5 if self._mqtt5 else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)  # the session's flow control bounds what is in flight
        client.connect_timeout = self._settings.connect_timeout_s
        if identity.username is not None:
            client.username_pw_set(identity.username, identity.password)
        if identity.tls is not None:
            client.tls_set_context(identity.tls)
        if identity.will is not None:
            will = identity.will
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        return client

    def dial(self) -> "asyncio.Future[None]":
        """Start to connect; the future ends with the TCP or TLS connection, or ``ConnectFailed``.

        In a thread of its own, because name look-up, connect and handshake block; a daemon thread, so that a
        resolver that hangs cannot delay the end of the process.
        """
        dialled: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._dial, args=(dialled,), name="mqtt-dial", daemon=True).start()
        return dialled

    def _dial(self, dialled: "asyncio.Future[None]") -> None:
        client, options = self._client, self._options()
        try:
            client.connect(self._settings.host, self._settings.port, self._settings.keepalive_s, **options)
        except (OSError, ValueError) as error:  # ValueError: a host name that IDNA cannot encode
            post(self._loop, fail, dialled, ConnectFailed(dial_words(self._settings, error)))
            return
        with self._gate:
            if self._closed:
                client.disconnect()
                _close_sockets(client)
                return
            client.loop_start()
            self._thread = client._thread  # noqa: SLF001 - paho has no public way to see its thread die
        post(self._loop, succeed, dialled)

    def _options(self) -> dict[str, Any]:
        if not self._mqtt5:
            return {}
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._settings.session_expiry_s
        properties.ReceiveMaximum = min(65535, self._receive_maximum)
        properties.MaximumPacketSize = max(MAX_INCOMING_BYTES, self._settings.max_packet_bytes)
        return {"clean_start": self._settings.session_expiry_s == 0, "properties": properties}

    @property
    def closed_by_peer(self) -> bool:
        """Whether the broker ended the TCP connection in order, and not by RST."""
        return self._client.closed_by_peer

    @property
    def dead(self) -> bool:
        """Whether the network thread has ended; after a malformed packet it can end without a callback."""
        return self._thread is not None and not self._thread.is_alive()

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> int:
        """Pass a packet to the network thread; returns its id. Never uses topic aliases.

        Raises:
            Transient: the socket is closed.
        """
        info = self._client.publish(topic, payload, qos, retain)
        if info.rc != paho.MQTT_ERR_SUCCESS:
            raise Transient(f"{topic} was not published: {paho.error_string(info.rc)}")
        return info.mid

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> int:
        """Pass a SUBSCRIBE of all filters to the network thread; returns its id.

        Raises:
            ConnectFailed: the socket is closed.
        """
        code, mid = self._client.subscribe(list(filters))
        if code != paho.MQTT_ERR_SUCCESS or mid is None:
            raise ConnectFailed(f"the connection to the broker at {self._settings.where} ended at once")
        return mid

    async def close(self, timeout_s: float = 2.0) -> None:
        """Send DISCONNECT if possible, and end the network thread in any case."""
        client = self._client
        with self._gate:
            self._closed = True
        self._order.closed = True
        if self._thread is not None:
            client.disconnect()
            await self._thread_ended(self._thread, timeout_s)
            if not self._thread.is_alive():
                _close_sockets(client)
        # Breaks the reference cycle: a client whose thread hangs closes its sockets when that ends.
        client.on_connect = client.on_disconnect = client.on_publish = None
        client.on_subscribe = client.on_message = None

    async def _thread_ended(self, thread: threading.Thread, timeout_s: float) -> None:
        """Wait for the network thread; after half the time, cut the socket if the peer reads nothing."""
        started = time.monotonic()
        cut = False
        while thread.is_alive() and time.monotonic() - started < timeout_s:
            if not cut and time.monotonic() - started > timeout_s / 2:
                cut = True
                self._cut()
            await asyncio.sleep(0.005)

    def _cut(self) -> None:
        sock: Any = self._client.socket()
        if sock is not None:
            try:
                sock.shutdown(2)
            except OSError:
                return  # closed between the two lines

    def _on_connect(self, _c: Any, _u: Any, flags: Any, reason: ReasonCode, limits: Any) -> None:
        post(self._loop, self._events.connected, bool(flags.session_present), reason, limits)

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, reason: ReasonCode, _p: Any) -> None:
        post(self._loop, self._events.lost, bool(flags.is_disconnect_packet_from_server), reason)

    def _on_publish(self, _c: Any, _u: Any, mid: int, reason: ReasonCode, _p: Any) -> None:
        post(self._loop, self._events.acknowledged, mid, reason)

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, reasons: list[ReasonCode], _p: Any) -> None:
        post(self._loop, self._events.subscribed, mid, reasons)

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        acknowledge = self._order.expect(partial(self._client.ack, message.mid, 1)) if message.qos else no_ack
        wire_bytes = len(message.payload) + len(message._topic) + 5  # noqa: SLF001 - `topic` decodes, and may raise
        try:
            topic: str | None = message.topic
        except UnicodeDecodeError:
            topic = None
        self._events.arrived(
            Arrival(topic, bytes(message.payload), message.retain, message.qos, wire_bytes, acknowledge)
        )
