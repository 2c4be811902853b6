"""The ``mqtt`` source: sensors and labels on a local broker, for example from zigbee2mqtt or Tasmota.

It has a connection of its own, to any broker, and reconnects by itself. Samples are live, so the broker
queues nothing while the agent is away. A retained message is of unknown age: it counts for labels, which
hold, and for modalities only with ``retained = true``.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from edge_agent.sources.base import REGISTRY, SourceKind, require_known, unit_doubts
from edge_agent.sources.mqtt.frames import TopicFrame
from edge_agent.sources.mqtt.values import Marker, MqttLabel, MqttModality, TopicGauge, parsed
from edge_agent.sources.payloads import BadPayload
from models.data.streams.batches import Batch, SampleBatch
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.mqtt.link import Link, Message, read_password, tls_context
from runtime.settings.load import BrokerSettings, MqttSettings

LOOK_S: Final = 1.0
"""The longest time from a lost connection to the end of the active labels."""
MAX_BATCHES: Final = 4096
"""Rows that wait for the agent; beyond it the oldest are dropped and counted."""
MAX_VALUES: Final = 1 << 20
"""The same limit in values, for vectors and texts (4 MB)."""


class MqttSourceSettings(BrokerSettings):
    """Keys of ``[[source]] kind = "mqtt"``."""

    client_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """None: a new one at each start."""
    keepalive_s: Annotated[int, Field(ge=1, le=65535)] = 30
    backoff_max_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    retained: bool = False
    """Treat retained messages as measured now."""
    max_payload_bytes: Annotated[int, Field(ge=16, le=1 << 20)] = 65536
    modalities: Annotated[dict[str, MqttModality], Field(max_length=16, default_factory=dict)]
    labels: Annotated[tuple[MqttLabel, ...], Field(max_length=16)] = ()

    @model_validator(mode="after")
    def _has_topics(self) -> Self:
        if not self.modalities and not self.labels:
            raise ValueError("neither modalities nor labels: nothing to subscribe to")
        return self

    def link(self) -> MqttSettings:
        """Settings of the connection."""
        most = self.backoff_max_s
        return self.link_with(keepalive_s=self.keepalive_s, backoff_max_s=most, backoff_min_s=min(1.0, most))


class Mqtt:
    """One connection to one broker. Calling :meth:`samples` again opens another one."""

    def __init__(self, settings: MqttSourceSettings, known: Sequence[str] | None, clock: Clock) -> None:
        require_known(settings.modalities, known)
        self._settings = settings
        self._link_settings = settings.link()
        read_password(self._link_settings)
        tls_context(self._link_settings)
        self._clock = clock
        tables = settings.modalities.items()
        self._gauges = [TopicGauge(name, modality) for name, modality in tables if modality.channels]
        self._frames = [TopicFrame(name, modality) for name, modality in tables if not modality.channels]
        self._markers = [Marker(label) for label in settings.labels]
        self._batches: deque[Batch] = deque()
        self._waiting = 0
        """Their values."""
        self._link: Link | None = None
        self._bad = ""
        self._counts: dict[str, float] = {}
        self.name = f"mqtt {self._link_settings.where}"
        self.channels = {name: len(modality.channels) for name, modality in tables}

    @property
    def state(self) -> str:
        """See :class:`.base.ReportsStatus`; with the newest payload that could not be read."""
        doing = "not connected" if self._link is None else self._link.why
        return doing + (f"; last bad payload: {self._bad}" if self._bad else "")

    @property
    def counters(self) -> dict[str, float]:
        """See :class:`edge_agent.sources.base.ReportsStatus`."""
        link = self._link
        counters = {} if link is None else {"reconnects": link.counters.reconnects}
        return self._counts | {key: float(value) for key, value in counters.items() if value}

    def doubts(self, task: Task) -> list[str]:
        """Units that differ from the task's, and labels of targets that it does not have."""
        units = {name: modality.unit for name, modality in self._settings.modalities.items()}
        words = unit_doubts(self.name, units, task)
        words += [
            f"{self.name}: labels for target {marker.settings.target!r}: task {task.name!r} has none"
            for marker in self._markers
            if marker.settings.target not in task.target_names
        ]
        return words

    def follow(self, task: Task) -> None:
        """Labels may use the names of the task's classes, and texts its buckets, from now on."""
        for marker in self._markers:
            marker.follow(task)
        for frame in self._frames:
            frame.follow(task)
        self.channels = self.channels_in(task)

    def channels_in(self, task: Task) -> dict[str, int]:
        """See :class:`edge_agent.sources.base.SizedByTask`: vectors and texts are as large as the task says.

        0: the task has the modality with another kind, or has none of that name.
        """
        found = {one.name: one.modality_in(task) for one in self._frames}
        sizes = {name: 0 if modality is None else modality.channels for name, modality in found.items()}
        return {gauge.name: len(gauge.settings.channels) for gauge in self._gauges} | sizes

    async def samples(self) -> AsyncIterator[Batch]:
        """Connect, for ever, and yield; see :class:`edge_agent.sources.base.Source`."""
        topics = [c.topic for g in self._gauges for c in g.settings.channels]
        topics += [frame.frame.topic for frame in self._frames]
        topics += [m.settings.topic for m in self._markers]
        client = self._settings.client_id or f"lichen-{secrets.token_hex(6)}"
        link = self._link = Link(
            self._link_settings, client, filters=[(topic, 0) for topic in dict.fromkeys(topics)]
        )
        came = Signal()
        tasks = [asyncio.create_task(link.run()), asyncio.create_task(self._listen(link, came))]
        try:
            while not any(task.done() for task in tasks):
                await self._pause(came)
                if not link.connected:
                    self._put(batch for m in self._markers for batch in m.end(self._clock.wall()))
                self._put(self._beat(self._clock.wall()))
                while self._batches:
                    batch = self._batches.popleft()
                    self._waiting -= _size(batch)
                    yield batch
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._link = None

    def _beat(self, now: float) -> Iterator[Batch]:
        for gauge in self._gauges:
            yield from gauge.beat(now)
        for marker in self._markers:
            yield from marker.beat(now)

    async def _pause(self, came: Signal) -> None:
        """Wait for a message, or for the next beat."""
        now = self._clock.wall()
        dues = [gauge.due - now for gauge in self._gauges if gauge.settings.every_s is not None]
        await came.wait(min([LOOK_S, *(max(0.001, due) for due in dues)]))

    async def _listen(self, link: Link, came: Signal) -> None:
        async for message in link.messages():
            self._take(message)
            message.ack()
            came.set()

    def _take(self, message: Message) -> None:
        arrived = self._clock.wall() - max(0.0, self._clock.now() - message.arrived)
        try:
            payload = parsed(message.payload, self._settings.max_payload_bytes)
        except BadPayload as error:
            self._refuse(message, error)
            return
        takers: list[TopicGauge | TopicFrame | Marker] = [*self._markers]
        measured: list[TopicGauge | TopicFrame] = [*self._gauges, *self._frames]
        if self._settings.retained or not message.retain:
            takers += measured
        elif any(one.hears(message.topic) for one in measured):
            self._counts["retained_ignored"] = self._counts.get("retained_ignored", 0) + 1
        for taker in takers:
            try:
                self._put(taker.take(message.topic, payload, arrived, self._counts))
            except BadPayload as error:
                self._refuse(message, error)

    def _put(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            self._batches.append(batch)
            self._waiting += _size(batch)
            while len(self._batches) > MAX_BATCHES or self._waiting > MAX_VALUES:
                self._waiting -= _size(self._batches.popleft())
                self._counts["dropped_samples"] = self._counts.get("dropped_samples", 0) + 1

    def _refuse(self, message: Message, error: BadPayload) -> None:
        self._counts["bad_payloads"] = self._counts.get("bad_payloads", 0) + 1
        self._bad = f"{message.topic[:64]!r}: {error}"


def _size(batch: Batch) -> int:
    return int(batch.values.size) if isinstance(batch, SampleBatch) else len(batch.t)


REGISTRY.add("mqtt", SourceKind(MqttSourceSettings, Mqtt))
