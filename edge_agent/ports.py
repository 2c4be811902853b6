"""What the services need of the MQTT link and of the worker, so that others can stand in for them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from protocol.rollout import Hindrance, TrialReport
from runtime.mqtt.link import LinkCounters, Message, OnConnect, WillNow


class Publisher(Protocol):
    """The part of ``runtime.mqtt.link.Link`` that sends."""

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
    """The part of ``runtime.mqtt.link.Link`` that the agent runs."""

    counters: LinkCounters
    why: str

    @property
    def since(self) -> float:
        """When :attr:`why` began to be so, unix seconds."""

    """When ``why`` began, unix seconds."""
    until: float | None
    """When it tries again, unix seconds."""

    @property
    def resumed(self) -> bool:
        """Whether the broker kept our session: what was on its way to us still comes."""

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Keep connected for ever; ``on_connect`` after each connect, a callable ``will`` asked before it."""

    def reconnect(self, because: str) -> None:
        """End the connection, if there is one, and begin another, with the TLS files as they are then."""

    def messages(self) -> AsyncIterator[Message]:
        """What arrives; every message must be acknowledged."""


class ReportsModels(Protocol):
    """What the state message says of models."""

    @property
    def digest(self) -> str | None:
        """Of the bundle of the model that answers."""

    @property
    def trial(self) -> TrialReport | None:
        """How the model on trial does, or the last one did."""

    @property
    def blocked(self) -> Hindrance | None:
        """What keeps the device from the model that it is pointed to."""


class Trainer(Protocol):
    """The part of ``runtime.process.worker.Worker`` that the learner uses."""

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Do one job. Raises WorkerFailed."""

    async def close(self) -> None:
        """End what runs."""
