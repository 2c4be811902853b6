"""Converts messages of local topics to vectors and texts, one for each message. Pure.

A text is counted at once, in the buckets that the task says; the text itself is not stored. Until a task is
known, and in one that has no such modality, messages are ignored.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paho.mqtt.client import topic_matches_sub

from edge_agent.sources.mqtt.values import MqttModality, TimedFrame, moment
from edge_agent.sources.payloads import BadPayload, at, linear, number, parse_path, shown
from models.data.streams.batches import Batch, SampleBatch
from models.data.text_ngrams import counts_of
from protocol.tasks.task import Modality, Task


class TopicFrame:
    """The vectors or texts of one modality.

    Args:
        name: of the modality.
        settings: its table, which has ``text`` or ``vector``.
    """

    def __init__(self, name: str, settings: MqttModality) -> None:
        self.name = name
        self.settings = settings
        frame = settings.text or settings.vector
        assert frame is not None  # noqa: S101 - for the type checker
        self.frame: TimedFrame = frame
        self._kind = "text" if settings.text is not None else "vector"
        self._path = parse_path(frame.path)
        self._modality: Modality | None = None

    def modality_in(self, task: Task) -> Modality | None:
        """The modality, if the task has it and it is of this kind."""
        found = task.modality(self.name) if self.name in task.modality_names else None
        return found if found is not None and found.kind == self._kind else None

    def follow(self, task: Task) -> None:
        """Count and compare by this task from now on."""
        self._modality = self.modality_in(task)

    def hears(self, topic: str) -> bool:
        """Whether a message on this topic is for it."""
        return bool(topic_matches_sub(self.frame.topic, topic))

    def take(self, topic: str, payload: Any, arrived: float, counters: dict[str, float]) -> Iterator[Batch]:
        """Handle a message that arrived at ``arrived`` (Unix s).

        Raises:
            BadPayload: it is no text, or no vector of as many numbers as the task says.
        """
        modality = self._modality
        if modality is None or not self.hears(topic):
            return
        value = at(payload, self._path)
        values_V = self._counts(modality, value) if self._kind == "text" else self._numbers(modality, value)
        t, own = moment(payload, self.settings.time_path, self.settings.time_unit, arrived)
        if not own:
            counters["odd_times"] = counters.get("odd_times", 0) + 1
        yield SampleBatch(self.name, np.array([t]), values_V[None])

    @staticmethod
    def _counts(modality: Modality, value: Any) -> NDArray[np.float32]:
        if not isinstance(value, str | int | float):
            raise BadPayload(f"{shown(value)} is not a text")
        counts_1V = counts_of([str(value)], modality.channels)
        return counts_1V.ravel()

    def _numbers(self, modality: Modality, value: Any) -> NDArray[np.float32]:
        if not isinstance(value, list) or len(value) != modality.channels:
            found = f"{len(value)} values" if isinstance(value, list) else shown(value)
            raise BadPayload(f"{found}: a list of {modality.channels} numbers is needed")
        return linear([number(one, {}) for one in value], self.settings.factor, self.settings.offset)
