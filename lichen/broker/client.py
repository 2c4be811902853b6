"""An MQTT client for probes: it can hold back PUBACK, break off without DISCONNECT, and fall silent.

The daemons' link does none of this on purpose, so a probe needs paho itself.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from lichen.broker.client_types import ClientOptions, NoAnswer, NotAccepted, Received
from lichen.broker.facts import ConnackLimits
from runtime.mqtt.errors import dial_words
from runtime.mqtt.tls import TlsContexts
from runtime.settings.load import MqttSettings

ANSWER_S: Final = 5.0
"""How long a probe waits for one answer of the broker."""
_WINDOW: Final = 16
"""Publishes without PUBACK; below the smallest Receive Maximum that brokers are known to have."""
_SESSION_S: Final = 120
"""Life of a persistent session of MQTT 5; those of 3.1.1 are removed at the end."""


class ProbeClient:
    """One connection; a context that ends it.

    Args:
        settings: address, protocol and credentials.
        password: of ``settings.username``.
        client_id: as sent.
        options: how to connect.
    """

    def __init__(
        self,
        settings: MqttSettings,
        password: str | None,
        client_id: str,
        options: ClientOptions | None = None,
    ) -> None:
        self.client_id = client_id
        self._settings = settings
        self._options = options = options or ClientOptions()
        self._acknowledges = options.acknowledges
        self._changed = threading.Condition()
        self._connack: tuple[bool, str, int, Any] | None = None
        self._acks: dict[int, str] = {}
        self._subacks: dict[int, list[str]] = {}
        self._messages: list[Received] = []
        self._ended = ""
        self._silent = False
        self.present = False
        """Whether the broker had a session of this id."""
        self.limits = ConnackLimits()
        self._mqtt5 = settings.protocol == "5"
        self._client = self._made(client_id, password, options)

    def _made(self, client_id: str, password: str | None, options: ClientOptions) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if self._mqtt5 else not options.persistent,
            protocol=paho.MQTTv5 if self._mqtt5 else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)
        client.connect_timeout = self._settings.connect_timeout_s
        if self._settings.username is not None:
            client.username_pw_set(self._settings.username, password)
        if (context := TlsContexts(self._settings).context()) is not None:
            client.tls_set_context(context)
        if (will := options.will) is not None:
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> Self:
        """Connect and wait for CONNACK.

        Raises:
            NoAnswer: unreachable, silent or closed before CONNACK.
            NotAccepted: the broker refused.
        """
        settings, keepalive_s = self._settings, self._options.keepalive_s or self._settings.keepalive_s
        try:
            self._client.connect(settings.host, settings.port, keepalive_s, **self._connect_options())
        except (OSError, ValueError) as error:
            raise NoAnswer(dial_words(settings, error)) from None
        self._client.loop_start()
        if not self._wait(lambda: self._connack is not None, settings.connect_timeout_s):
            words = self._ended or f"no CONNACK in {settings.connect_timeout_s:g} s"
            self.close()
            raise NotAccepted(words, wrong_version=bool(self._ended))
        assert self._connack is not None  # noqa: S101 - waited for
        self.present, refused, code, limits = self._connack
        if refused:
            self.close()
            raise NotAccepted(f"CONNACK refuses: {refused}", wrong_version=code == 0x84)  # noqa: PLR2004 - MQTT 5, 2.4
        self.limits = ConnackLimits.of(limits)
        return self

    def _connect_options(self) -> dict[str, Any]:
        if not self._mqtt5:
            return {}
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = _SESSION_S if self._options.persistent else 0
        properties.ReceiveMaximum = 65535
        return {"clean_start": self._options.fresh, "properties": properties}

    @property
    def open(self) -> bool:
        """Whether the connection stands."""
        return self._connack is not None and not self._ended

    @property
    def window(self) -> int:
        """Publishes without PUBACK that the broker allows, at most 16."""
        return min(_WINDOW, self.limits.receive_maximum or _WINDOW)

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        """SUBSCRIBE to all filters in one packet.

        Raises:
            NoAnswer: no SUBACK, or one that refuses a filter.
        """
        code, mid = self._client.subscribe([(one, qos) for one in filters])
        if code != paho.MQTT_ERR_SUCCESS or mid is None:
            raise NoAnswer(self._why("SUBSCRIBE was not sent"))
        if not self._wait(lambda: mid in self._subacks):
            raise NoAnswer(self._why(f"no SUBACK for {', '.join(filters)}"))
        if refused := [words for words in self._subacks[mid] if words]:
            raise NoAnswer(f"SUBACK refuses {', '.join(filters)}: {refused[0]}")

    def send(self, topic: str, payload: bytes, *, retain: bool = False, qos: int = 1) -> int:
        """PUBLISH without a wait; returns the packet id.

        Raises:
            NoAnswer: the connection is over.
        """
        info = self._client.publish(topic, payload, qos, retain)
        if info.rc != paho.MQTT_ERR_SUCCESS:
            raise NoAnswer(self._why(f"a message of {len(payload)} bytes was not sent"))
        return info.mid

    def wait_acks(self, mids: Iterable[int], timeout_s: float = ANSWER_S) -> list[str]:
        """Why each packet failed: PUBACK's reason, ``no PUBACK``, or empty for success."""
        wanted = list(mids)
        self._wait(lambda: all(mid in self._acks for mid in wanted), timeout_s)
        with self._changed:
            return [self._acks.get(mid, "no PUBACK") for mid in wanted]

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """PUBLISH at QoS 1, and wait for PUBACK.

        Raises:
            NoAnswer: no PUBACK, or one that refuses.
        """
        if words := self.wait_acks([self.send(topic, payload, retain=retain)])[0]:
            raise NoAnswer(self._why(f"{topic}: {words}"))

    def publish_all(
        self, messages: Sequence[tuple[str, bytes]], *, retain: bool = False, timeout_s: float = 15.0
    ) -> int:
        """PUBLISH at QoS 1, below ``max_publishes_per_s``; returns how many had a PUBACK."""
        pause = 1.1 / rate if (rate := self._settings.max_publishes_per_s) else 0.0
        until, sent = time.monotonic() + timeout_s, list[int]()
        for topic, payload in messages:
            if len(sent) >= self.window:
                self.wait_acks([sent[-self.window]], max(0.0, until - time.monotonic()))
            if time.monotonic() > until:
                break
            sent.append(self.send(topic, payload, retain=retain))
            time.sleep(pause)
        return self.wait_acks(sent, max(0.1, until - time.monotonic())).count("")

    def received(
        self, count: int, timeout_s: float = ANSWER_S, *, quiet_s: float | None = None
    ) -> list[Received]:
        """All messages so far, once there are ``count`` of them or the time is over.

        Args:
            count: how many are expected.
            timeout_s: in all.
            quiet_s: give up earlier when nothing came for so long.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while len(self._messages) < count and not self._ended:
                before = len(self._messages)
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait_for(
                    lambda before=before: len(self._messages) > before or self._ended,  # type: ignore[misc]
                    left if quiet_s is None else min(left, quiet_s),
                )
                if len(self._messages) == before and quiet_s is not None:
                    break
            return list(self._messages)

    def quiet(self, seconds: float) -> list[Received]:
        """All messages so far, once nothing came for ``seconds``."""
        return self.received(1 << 30, ANSWER_S + seconds, quiet_s=seconds)

    def acknowledge(self, messages: Iterable[Received]) -> None:
        """PUBACK for these."""
        for one in messages:
            if one.qos:
                self._client.ack(one.mid, one.qos)

    def acknowledges_from_now(self) -> None:
        """PUBACK for all that came and that will come."""
        with self._changed:
            self._acknowledges = True
            held = list(self._messages)
        self.acknowledge(held)

    def wait_end(self, timeout_s: float) -> str:
        """Why the broker ended the connection; empty: it did not in this time."""
        self._wait(lambda: False, timeout_s)
        return self._ended

    def fall_silent(self) -> None:
        """Send nothing any more, not even PINGREQ, with the socket open."""
        self._silent = True
        self._client.loop_stop()

    def cut(self) -> None:
        """End the connection without DISCONNECT."""
        sock: Any = self._client.socket()
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if not self._silent:
            self._wait(lambda: False, ANSWER_S)  # until paho saw the end
        self._client.loop_stop()
        if sock is not None:
            sock.close()

    def close(self) -> None:
        """DISCONNECT, and end the network thread."""
        self._client.disconnect()
        self._client.loop_stop()
        client = self._client
        client.on_connect = client.on_disconnect = client.on_publish = None
        client.on_subscribe = client.on_message = None

    def _wait(self, true: Callable[[], bool], timeout_s: float = ANSWER_S) -> bool:
        """Until it is true or the connection ends."""
        with self._changed:
            self._changed.wait_for(lambda: true() or bool(self._ended), timeout_s)
            return true()

    def _why(self, words: str) -> str:
        return f"{words}; {self._ended}" if self._ended else words

    def _note(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def _on_connect(self, _c: Any, _u: Any, flags: Any, reason: ReasonCode, limits: Any) -> None:
        refused = str(reason) if reason.is_failure else ""
        self._note(
            lambda: setattr(self, "_connack", (bool(flags.session_present), refused, reason.value, limits))
        )

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, reason: ReasonCode, _p: Any) -> None:
        named = flags.is_disconnect_packet_from_server
        words = f"the broker ended the connection: {reason}" if named else "the broker ended the connection"
        self._note(lambda: setattr(self, "_ended", words))

    def _on_publish(self, _c: Any, _u: Any, mid: int, reason: ReasonCode, _p: Any) -> None:
        self._note(lambda: self._acks.update({mid: str(reason) if reason.is_failure else ""}))

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, reasons: list[ReasonCode], _p: Any) -> None:
        codes = [str(one) if one.is_failure else "" for one in reasons]
        self._note(lambda: self._subacks.update({mid: codes}))

    def _on_message(self, _c: Any, _u: Any, m: paho.MQTTMessage) -> None:
        topic = bytes(m._topic).decode(errors="replace")  # noqa: SLF001 - `topic` raises for what is not UTF-8
        one = Received(topic, bytes(m.payload), m.retain, m.dup, m.qos, m.mid, time.monotonic())
        with self._changed:
            self._messages.append(one)
            acknowledges = self._acknowledges
            self._changed.notify_all()
        if acknowledges:
            self.acknowledge([one])
