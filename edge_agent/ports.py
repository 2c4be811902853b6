"""What the services need of the MQTT link and of the worker, as protocols that tests can implement."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from protocol.rollout import Hindrance, TrialReport
from runtime.mqtt.link import LinkCounters, Message, OnConnect, WillNow


class Publisher(Protocol):
    """The sending part of ``runtime.mqtt.link.Link``."""

    @property
    def connected(self) -> bool:
        """Whether a publish can work now."""

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits one packet."""

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Send; returns at PUBACK. Raises Transient or Refused."""


class AgentLink(Publisher, Protocol):
    """The part of ``runtime.mqtt.link.Link`` that the agent uses."""

    counters: LinkCounters
    why: str

    @property
    def since(self) -> float:
        """When :attr:`why` became true, unix seconds."""

    """When ``why`` became true, unix seconds."""
    until: float | None
    """Time of the next attempt, unix seconds."""

    @property
    def resumed(self) -> bool:
        """Whether the broker kept our session, with the messages queued for us."""

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Keep connected for ever; call ``on_connect`` after each connect, and ``will`` before it."""

    def reconnect(self, because: str) -> None:
        """Close the connection, if there is one, and open another with the present TLS files."""

    def messages(self) -> AsyncIterator[Message]:
        """Received messages; each must be acknowledged."""


class ReportsModels(Protocol):
    """What the state message reports about models."""

    @property
    def digest(self) -> str | None:
        """Of the active model's bundle."""

    @property
    def trial(self) -> TrialReport | None:
        """State of the present trial, or of the last one."""

    @property
    def blocked(self) -> Hindrance | None:
        """Why the device does not run the announced model."""


class Trainer(Protocol):
    """The part of ``runtime.process.worker.Worker`` that the learner uses."""

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Run one job. Raises WorkerFailed."""

    async def close(self) -> None:
        """Stop the running job."""
