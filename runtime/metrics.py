"""Metrics of a daemon's parts: named values, read on request."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric in Prometheus' sense.

    Attributes:
        name: as it is served, without a counter's ``_total``.
        words: its help text.
        kind: a gauge goes up and down, a counter only up.
        values: label values -> value; a metric without labels has one, under ``()``.
        labels: names of the labels.
    """

    name: str
    words: str
    kind: Literal["gauge", "counter"]
    values: Sequence[tuple[tuple[str, ...], float]]
    labels: tuple[str, ...] = ()


class HasMetrics(Protocol):
    """A part with metrics."""

    def metrics(self) -> Iterable[MetricFamily]:
        """Its present metrics; called from any thread."""


def gauge(name: str, words: str, value: float) -> MetricFamily:
    """A gauge without labels."""
    return MetricFamily(name, words, "gauge", [((), float(value))])


def counter(name: str, words: str, value: float) -> MetricFamily:
    """A counter without labels."""
    return MetricFamily(name, words, "counter", [((), float(value))])
