"""What a probe's client takes and gives: options, messages, errors."""

from dataclasses import dataclass

from protocol.errors import Transient
from runtime.mqtt.connection import Will


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it came; ``at`` by ``time.monotonic``."""

    topic: str
    payload: bytes
    retain: bool
    dup: bool
    qos: int
    mid: int
    at: float


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client connects.

    Attributes:
        persistent: the session outlives the connection.
        fresh: the broker forgets an older session at CONNECT.
        acknowledges: each message as soon as it comes; else only by :meth:`ProbeClient.acknowledge`.
        keepalive_s: None: that of the settings.
        will: of the connection.
    """

    persistent: bool = False
    fresh: bool = True
    acknowledges: bool = True
    keepalive_s: int | None = None
    will: Will | None = None


class NoAnswer(Transient):
    """The broker did not answer, or ended the connection; the message says at which step."""


class NotAccepted(NoAnswer):
    """CONNACK refused the connection. ``wrong_version``: the broker does not speak this version of MQTT."""

    def __init__(self, words: str, *, wrong_version: bool) -> None:
        super().__init__(words)
        self.wrong_version = wrong_version
