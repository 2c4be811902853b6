"""Messages for failures between this client and a broker."""

import socket
import ssl
from typing import Final

from paho.mqtt.reasoncodes import ReasonCode

from protocol.errors import Transient
from runtime.mqtt.tls import date_words
from runtime.settings.load import MqttSettings

TAKEN_OVER: Final = 0x8E
"""MQTT 5: DISCONNECT, another client connected with our client id."""
_UNSPECIFIED: Final = 0x80
_UNSUPPORTED_VERSION: Final = 0x84
_BAD_CLIENT_ID: Final = 0x85
_BAD_CREDENTIALS: Final = (0x86, 0x87)
_NO_SHARED: Final = 0x9E
SMALLEST_CHUNK_BYTES: Final = 1024
"""The protocol's smallest chunk."""


class ConnectFailed(Transient):
    """No connection now. ``patient``: only a person can repair it, so retry at the slowest pace."""

    def __init__(self, words: str, *, patient: bool = False) -> None:
        super().__init__(words)
        self.patient = patient


def dial_words(settings: MqttSettings, error: Exception) -> str:
    """Why the TCP or TLS connection failed."""
    where = f"the broker at {settings.where}"
    if isinstance(error, ssl.SSLCertVerificationError):
        words = f"{where} shows a certificate that is not trusted: {error.verify_message} (mqtt.tls.ca_file)"
        return words + date_words(error)
    if isinstance(error, ssl.SSLError):
        return f"{where}: TLS failed: {error.reason or error} (mqtt.tls, mqtt.port)"
    if isinstance(error, socket.gaierror):
        return f"{where}: the host name is not known: {error.strerror} (mqtt.host)"
    if isinstance(error, ConnectionRefusedError):
        return f"{where} is not there: connection refused"
    if isinstance(error, TimeoutError):
        return f"{where} does not answer in {settings.connect_timeout_s:g} s"
    return f"{where} cannot be reached: {error}"


def refusal(settings: MqttSettings, reason: ReasonCode) -> ConnectFailed:
    """The error for a CONNACK that refuses the connection."""
    where = f"the broker at {settings.where}"
    if reason.value in _BAD_CREDENTIALS:
        return ConnectFailed(
            f"{where} refuses us: {reason}; check mqtt.username and mqtt.password_file (or mqtt.tls)",
            patient=True,
        )
    if reason.value == _UNSUPPORTED_VERSION:
        return ConnectFailed(f"{where} does not speak MQTT {settings.protocol} (mqtt.protocol)", patient=True)
    if reason.value == _BAD_CLIENT_ID:
        return ConnectFailed(f"{where} refuses our client id: {reason}", patient=True)
    return ConnectFailed(f"{where} refuses the connection: {reason}")


def limit_words(settings: MqttSettings, limits: object, topic_room: int) -> str:
    """Which of lichen's needs the limits in CONNACK rule out; empty if none."""
    where = f"the broker at {settings.where}"
    if getattr(limits, "MaximumQoS", 1) < 1:
        return f"{where} offers QoS 0 only; lichen needs QoS 1"
    if getattr(limits, "RetainAvailable", 1) < 1:
        return f"{where} does not store retained messages; lichen needs them for states and announcements"
    if getattr(limits, "WildcardSubscriptionAvailable", 1) < 1:
        return f"{where} allows no wildcard subscriptions; lichen needs them"
    most = getattr(limits, "MaximumPacketSize", None)
    if most is not None and most < SMALLEST_CHUNK_BYTES + topic_room:
        least = SMALLEST_CHUNK_BYTES + topic_room
        return f"{where} takes packets of at most {most} bytes; lichen needs {least}"
    return ""


def lost_words(settings: MqttSettings, reason: ReasonCode, *, from_broker: bool, before_connack: bool) -> str:
    """Why a connection ended."""
    where = f"the broker at {settings.where}"
    if from_broker and reason.value == TAKEN_OVER:
        return (
            f"{where} gave our session to another client with the same client id: "
            "two processes run as the same device or coordinator; stop one"
        )
    if from_broker:
        return f"{where} closed the connection: {reason}"
    if before_connack:
        return (
            f"{where} closed the connection before it answered; does it speak MQTT {settings.protocol} "
            "(mqtt.protocol), and TLS or not (mqtt.tls)?"
        )
    if reason.value == _UNSPECIFIED:  # nothing else is known: TCP ended without an MQTT packet
        return f"the connection to {where} was lost: it was cut, or the broker ended"
    return f"the connection to {where} was lost: {reason}"


def is_shared(name: str) -> bool:
    """Whether a topic filter is a shared subscription (MQTT 5, 4.8.2)."""
    return name.startswith("$share/")


def no_shared_words(settings: MqttSettings) -> str:
    """The message for a broker without shared subscriptions."""
    return (
        f"the broker at {settings.where} offers no shared subscriptions (MQTT {settings.protocol}), so it "
        "cannot divide updates among several processes: set cluster.shared_subscriptions = false, and one "
        "ingest process works at a time"
    )


def shared_refused_words(settings: MqttSettings, name: str, code: ReasonCode) -> str:
    """The message for a broker that refuses a shared subscription."""
    if code.value == _NO_SHARED:
        return no_shared_words(settings)
    return (
        f"the broker at {settings.where} refuses the shared subscription {name}: {code} (reason code "
        f"{code.value}); permit this filter in its access list, or, if it knows no shared subscriptions, set "
        "cluster.shared_subscriptions = false"
    )
