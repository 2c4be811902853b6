"""Converts messages of local topics to channels of modalities, and to classes and numbers of labels. Pure.

A modality whose channels all come from one topic gives a row for each message. With ``every_s`` it gives a
row at each beat, of the newest value of each channel, as long as none is older than ``hold_s``: so there may
be several topics, and a sensor may send only changes.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Self

import numpy as np
from paho.mqtt.client import topic_matches_sub
from pydantic import AfterValidator, Field, model_validator

from edge_agent.sources.payloads import (
    BadPayload,
    JsonPath,
    Missing,
    TimeUnit,
    at,
    linear,
    loads,
    number,
    parse_path,
    seconds,
    shown,
)
from models.data.streams.batches import Batch, LabelBatch, SampleBatch
from protocol.tasks.task import LABEL, Task
from runtime.settings.load import Section

NONE_WORDS: Final = frozenset({"", "none", "null", "-1", "off", "unknown"})
"""Payloads that end a label."""
MAX_SKEW_S: Final = 30.0
"""If a time in a payload is further than this from its arrival, its clock is wrong: the arrival counts."""


def _filter(text: str) -> str:
    levels = text.split("/")
    hashes = [i for i, level in enumerate(levels) if "#" in level]
    wrong = any("+" in level and level != "+" for level in levels)
    if wrong or "\0" in text or any(levels[i] != "#" or i != len(levels) - 1 for i in hashes):
        raise ValueError(f"{text!r} is not a topic filter: '+' is one whole level, '#' the last")
    return text


Topic = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_filter)]


class TimedValue(Section):
    """Keys of each value in a message: its topic, path and time."""

    topic: Topic
    """With the wildcards ``+`` and ``#`` of MQTT."""
    path: JsonPath = ""
    """In JSON, as ``wind.speed``; empty: the payload itself is the number or word."""
    words: dict[str, float] = Field(default_factory=dict)
    """Words -> numbers. By default on, true, open are 1; off, false, closed are 0."""


class TopicChannel(TimedValue):
    """One channel of a modality."""


class TimedFrame(Section):
    """Where the vectors or texts of a modality are: one in each message."""

    topic: Topic
    path: JsonPath = ""
    """Of a list of numbers, or of a text; empty: the payload itself."""


class MqttModality(Section):
    """``[source.modalities.<name>]`` of an MQTT source: ``channels``, or ``vector``, or ``text``."""

    channels: Annotated[tuple[TopicChannel, ...], Field(min_length=1, max_length=64)] = ()
    vector: TimedFrame | None = None
    text: TimedFrame | None = None
    every_s: Annotated[float, Field(gt=0, le=86400)] | None = None
    hold_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 60.0
    """With ``every_s``: how long a value is valid."""
    time_path: JsonPath | None = None
    """The measurement's time in the payload; None: its arrival."""
    time_unit: TimeUnit = "s"
    unit: str = ""
    """After ``factor`` and ``offset``; compared with the task's."""
    factor: float = 1.0
    offset: float = 0.0

    @model_validator(mode="after")
    def _one_topic_or_a_beat(self) -> Self:
        given = [name for name in ("channels", "vector", "text") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"one of channels, vector and text is needed (found {', '.join(given) or 'none'})"
            )
        if not self.channels and self.every_s is not None:
            raise ValueError(f"every_s: each message is one {given[0]}; leave it out")
        if self.every_s is None and len({c.topic for c in self.channels}) > 1:
            raise ValueError("channels of several topics have no common time: give every_s")
        if self.every_s is not None and self.hold_s < self.every_s:
            raise ValueError("hold_s is below every_s: every value would expire before its beat")
        if self.every_s is not None and self.time_path is not None:
            raise ValueError("time_path and every_s: rows on a beat have the beat's time; give one of them")
        return self


class MqttLabel(TimedValue):
    """``[[source.labels]]``: each message begins an interval that lasts until the next one."""

    target: str = LABEL
    time_path: JsonPath | None = None
    time_unit: TimeUnit = "s"
    at_most_s: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None
    """A label without an end is ended after this time; None: never."""


def moment(payload: Any, path: str | None, unit: TimeUnit, arrived: float) -> tuple[float, bool]:
    """Unix seconds of a message, and whether they are the payload's own time.

    Raises:
        BadPayload: the configured time is missing or invalid.
    """
    if path is None:
        return arrived, True
    t = seconds(at(payload, parse_path(path)), unit)
    return (t, True) if abs(t - arrived) <= MAX_SKEW_S else (arrived, False)


class TopicGauge:
    """The newest values of one modality's channels."""

    def __init__(self, name: str, settings: MqttModality) -> None:
        self.name = name
        self.settings = settings
        self.due = 0.0
        """Unix seconds of the next beat."""
        self._paths = [parse_path(channel.path) for channel in settings.channels]
        self._values = np.full(len(settings.channels), np.nan)
        self._seen = np.full(len(settings.channels), -math.inf)

    def hears(self, topic: str) -> bool:
        """Whether a message on this topic is for one of its channels."""
        return any(topic_matches_sub(channel.topic, topic) for channel in self.settings.channels)

    def take(self, topic: str, payload: Any, arrived: float, counters: dict[str, float]) -> Iterator[Batch]:
        """Handle a message that arrived at ``arrived`` (Unix s).

        Raises:
            BadPayload: it is for a channel of this modality and has no value for it. On a beat a message may
                leave out some of its channels: they keep their values.
        """
        settings, bad = self.settings, ""
        matching = [i for i, c in enumerate(settings.channels) if topic_matches_sub(c.topic, topic)]
        for i in matching:
            try:
                value = number(at(payload, self._paths[i]), settings.channels[i].words)
            except Missing as error:
                bad = bad or ("" if settings.every_s is not None and len(matching) > 1 else str(error))
            except BadPayload as error:
                bad = bad or str(error)
            else:
                self._values[i], self._seen[i] = value, arrived
        if bad:
            raise BadPayload(bad)
        if matching and settings.every_s is None:
            t, own = moment(payload, settings.time_path, settings.time_unit, arrived)
            if not own:
                counters["odd_times"] = counters.get("odd_times", 0) + 1
            yield self._row(t)

    def beat(self, now: float) -> Iterator[Batch]:
        """Rows of the beats up to ``now``; missed beats are gaps."""
        every = self.settings.every_s
        if every is None:
            return
        if not now - every <= self.due <= now + every:  # the start, a pause, or a clock that was set
            self.due = math.ceil(now / every) * every
        if self.due <= now:
            t, self.due = self.due, self.due + every
            if (np.abs(t - self._seen) <= self.settings.hold_s).all():
                yield self._row(t)

    def _row(self, t: float) -> SampleBatch:
        row = linear(self._values[None], self.settings.factor, self.settings.offset)
        return SampleBatch(self.name, np.array([t]), row)


class Marker:
    """The active label of one topic."""

    def __init__(self, settings: MqttLabel) -> None:
        self.settings = settings
        self.classes: tuple[str, ...] = ()
        """Of the target, as soon as the task is known."""
        self._path = parse_path(settings.path)
        self._since: float | None = None

    def follow(self, task: Task) -> None:
        """Get the names of classes from the task."""
        known = self.settings.target in task.target_names
        self.classes = task.target(self.settings.target).labels if known else ()

    def take(self, topic: str, payload: Any, arrived: float, counters: dict[str, float]) -> Iterator[Batch]:
        """Handle a message that arrived at ``arrived`` (Unix s).

        Raises:
            BadPayload: it is neither a class nor a number.
        """
        settings = self.settings
        if not topic_matches_sub(settings.topic, topic):
            return
        try:
            value = self._value(at(payload, self._path))
        except BadPayload:
            if self._since is not None:  # the old label has ended, and the new one is unknown
                yield self._batch(arrived, math.nan)
            raise
        t, own = moment(payload, settings.time_path, settings.time_unit, arrived)
        if not own:
            counters["odd_times"] = counters.get("odd_times", 0) + 1
        yield self._batch(t, value)

    def end(self, now: float) -> Iterator[Batch]:
        """The connection is lost: the end of the label may be missed."""
        if self._since is not None:
            yield self._batch(now, math.nan)

    def beat(self, now: float) -> Iterator[Batch]:
        """End a label that is active for too long."""
        limit = self.settings.at_most_s
        if limit is not None and self._since is not None and now - self._since > limit:
            yield self._batch(self._since + limit, math.nan)

    def _batch(self, t: float, value: float) -> LabelBatch:
        self._since = None if math.isnan(value) else t
        return LabelBatch(np.array([t]), np.array([value]), self.settings.target)

    def _value(self, given: Any) -> float:
        words: Mapping[str, float] = self.settings.words
        text = "" if given is None else str(given).strip()
        if text in words:
            return words[text]
        if text in self.classes:
            return float(self.classes.index(text))
        if text.lower() in NONE_WORDS or given is False:
            return math.nan
        try:
            return number(given, {text: math.nan} if isinstance(given, bool) else {"\0": 0.0})
        except BadPayload:
            known = ", ".join([*self.classes, *words]) or "numbers, as no task is known"
            raise BadPayload(f"{shown(given)} is not a class; known: {known}") from None


def parsed(payload: bytes, limit: int) -> Any:
    """JSON or text.

    Raises:
        BadPayload: too large, or not UTF-8.
    """
    if len(payload) > limit:
        raise BadPayload(f"{len(payload)} bytes, at most {limit} (max_payload_bytes)")
    return loads(payload)
