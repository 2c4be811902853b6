"""The spans of one round, and what records them. Pure: ids follow from names, so no message carries them.

The trace id is a hash of fleet, task, round and the version that the round began with; a span id is a hash of
the trace, the span's name and its device. Every process computes the same, so its spans meet in one trace,
and a span's parent may be recorded elsewhere, earlier or later.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from runtime.metrics import MetricFamily

PARENTS: Final[dict[str, str]] = {
    "round": "",
    "learn": "round",
    "windows": "learn",
    "fetch": "learn",
    "train": "learn",
    "quantize": "learn",
    "spool": "learn",
    "send": "learn",
    "ingest": "send",
    "verify": "ingest",
    "journal": "ingest",
    "close": "round",
    "screen": "close",
    "fold": "close",
    "version": "close",
    "export": "round",
    "announce": "export",
    "deploy": "announce",
    "pull": "deploy",
    "trial": "deploy",
    "commit": "deploy",
    "first prediction": "deploy",
}
"""Span -> parent."""
OF_A_DEVICE: Final = frozenset(PARENTS) - {
    "round", "close", "screen", "fold", "version", "export", "announce",
}  # fmt: skip
"""Spans that each device of the round has."""
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """What names a trace. ``base``: digest of the manifest that the round began with."""

    fleet: str
    task: str
    round: int
    base: str

    @property
    def trace_id(self) -> bytes:
        """16 bytes."""
        return _hash("lichen/trace/1", self.fleet, self.task, str(self.round), self.base)[:16]

    def span_id(self, name: str, device: str = "") -> bytes:
        """8 bytes; ``device`` counts for spans of a device alone."""
        return _hash("lichen/span/1", self.trace_id.hex(), name, device if name in OF_A_DEVICE else "")[:8]

    def parent_id(self, name: str, device: str = "") -> bytes | None:
        """Of the span's parent; None for the root."""
        parent = PARENTS[name]
        return self.span_id(parent, device) if parent else None


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A finished span. Times are Unix seconds."""

    trace: RoundTrace
    name: str
    start: float
    end: float
    device: str
    attributes: tuple[tuple[str, Value], ...]


class Tracer(Protocol):
    """Takes finished spans, and never blocks or fails."""

    on: bool
    """Whether spans go anywhere; if not, nothing is computed for them."""

    def span(
        self, trace: RoundTrace, name: str, start: float, end: float, device: str = "", **attributes: Value
    ) -> None:
        """Take a span."""

    def close(self) -> None:
        """Send what waits, for a moment."""

    def metrics(self) -> Iterable[MetricFamily]:
        """Spans sent and dropped."""

    def status(self) -> dict[str, Any]:
        """The same for a status."""


class NoTracer:
    """Takes nothing."""

    on = False

    def span(
        self, trace: RoundTrace, name: str, start: float, end: float, device: str = "", **attributes: Value
    ) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def metrics(self) -> Iterable[MetricFamily]:
        """None."""
        return ()

    def status(self) -> dict[str, Any]:
        """Nothing."""
        return {}


OFF: Final = NoTracer()


def _hash(*parts: str) -> bytes:
    return hashlib.sha256("\x00".join(parts).encode()).digest()
