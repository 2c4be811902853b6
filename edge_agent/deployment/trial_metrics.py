"""Metrics of a model on trial: bounded, and small enough to be kept on disk. Pure.

Shapes: B windows or questions, K classes or answers, C channels, T samples.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edge_agent.inference.onnx_models.observation import TAILS, Answers, BatchObservation, rows
from protocol.base import Count, Label, Wire
from protocol.bundle import BundleManifest
from protocol.tasks.task import LABEL, Target

_STEP: Final = 1.1
_LEAST_MS: Final = 0.01
_MOST_BUCKET: Final = 200
"""Buckets of a histogram of times: 10 % apart, from 0.01 ms to half an hour."""
_CLOSE: Final = 0.1
"""Numbers are equal within this share of a scale; windows, by their root mean square."""

Histogram = Annotated[dict[int, int], Field(max_length=1100)]
Counts = Annotated[dict[Label, Histogram], Field(max_length=16)]
Rows = NDArray[np.bool_]


class TrialMetrics(Wire):
    """Of one model on trial. ``paired``: the former model answered too."""

    windows: Count = 0
    """Answered windows; for a knowledge graph, questions."""
    errors: Count = 0
    """Windows without an answer."""
    batches: Count = 0
    """Windows answered by both."""
    paired: Count = 0
    agreed: Count = 0
    """Of ``paired``: both agree on every common target."""
    labelled: Count = 0
    right: Count = 0
    labelled_paired: Count = 0
    right_paired: Count = 0
    right_before: Count = 0
    """Of ``labelled_paired``: the former model was right."""
    latency: Histogram = Field(default_factory=dict)
    """Windows by the :func:`bucket` of their batch's time."""
    latency_before: Histogram = Field(default_factory=dict)
    said: Counts = Field(default_factory=dict)
    """Of paired windows: how often each class of each target was predicted."""
    said_before: Counts = Field(default_factory=dict)


def added(measures: TrialMetrics, seen: BatchObservation) -> TrialMetrics:
    """The metrics after one more batch."""
    if seen.error and seen.before_error:
        return measures  # nor could the former model: the windows or the device are at fault
    if seen.error or not _shaped(seen):
        return measures.model_copy(update={"errors": measures.errors + seen.count})
    sound_B = _finite(seen.answers, seen.count)
    more: dict[str, Any] = {
        "errors": measures.errors + int(seen.count - sound_B.sum()),
        "windows": measures.windows + int(sound_B.sum()),
        "latency": _with(measures.latency, {bucket(seen.latency_s): seen.count}),
    }
    right_B, known_B = _right(seen.answers, seen)
    more["labelled"] = measures.labelled + int(known_B.sum())
    more["right"] = measures.right + int(right_B.sum())
    if seen.before is not None and rows(seen.before) == seen.count:
        more |= _paired(measures, seen, seen.before, right_B)
    return measures.model_copy(update=more)


def _paired(measures: TrialMetrics, seen: BatchObservation, before: Answers, right_B: Rows) -> dict[str, Any]:
    agreed_B = _agreed(seen, before)
    right_before_B, known_B = _right(before, seen)
    slower = {} if seen.before_latency_s is None else {bucket(seen.before_latency_s): seen.count}
    more: dict[str, Any] = {
        "batches": measures.batches + 1,
        "latency_before": _with(measures.latency_before, slower),
        "labelled_paired": measures.labelled_paired + int(known_B.sum()),
        "right_paired": measures.right_paired + int(right_B.sum()),
        "right_before": measures.right_before + int(right_before_B.sum()),
    }
    if agreed_B is None:
        return more
    return more | {
        "paired": measures.paired + seen.count,
        "agreed": measures.agreed + int(agreed_B.sum()),
        "said": _class_counts(measures.said, seen, seen.answers, before),
        "said_before": _class_counts(measures.said_before, seen, before, seen.answers),
    }


def bucket(latency_s: float) -> int:
    """Bucket of a time in the histogram."""
    steps = math.log(max(1000 * latency_s, _LEAST_MS) / _LEAST_MS, _STEP)
    return min(_MOST_BUCKET, math.ceil(steps))


def quantile_ms(histogram: Mapping[int, int], share: float) -> float:
    """The time within which this share of windows was answered, at most 10 % too long; NaN if empty."""
    wanted, passed = share * sum(histogram.values()), 0
    for at in sorted(histogram):
        passed += histogram[at]
        if passed >= wanted:
            return float(_LEAST_MS * _STEP**at)
    return math.nan


def _with(before: Mapping[int, int], more: Mapping[int, int]) -> dict[int, int]:
    return {key: before.get(key, 0) + more.get(key, 0) for key in {*before, *more}}


def _finite(answers: Answers, count: int) -> Rows:
    """Which windows have a finite answer."""
    sound_B = np.ones(count, np.bool_)
    for answer in answers.values():
        sound_B &= np.isfinite(answer).reshape(count, -1).all(axis=1)
    return sound_B


def _shaped(seen: BatchObservation) -> bool:
    """Whether every window has an answer for every target: counting must not fail on it."""
    wanted = {target.name: (len(target.labels),) for target in seen.manifest.predicted if target.labels}
    return bool(seen.answers) and all(
        answer.shape[:1] == (seen.count,) and answer.shape[1:] == wanted.get(name, answer.shape[1:])
        for name, answer in seen.answers.items()
    )


def _right(answers: Answers, seen: BatchObservation) -> tuple[Rows, Rows]:
    """Which windows were predicted right, and for which that is known."""
    p_BK = answers.get(LABEL)
    if p_BK is None or p_BK.ndim != 2 or len(p_BK) != len(seen.y_B):  # noqa: PLR2004 - (B, K)
        none_B = np.zeros(seen.count, np.bool_)
        return none_B, none_B
    known_B = seen.y_B >= 0
    return known_B & (p_BK.argmax(axis=1) == seen.y_B), known_B


def _agreed(seen: BatchObservation, before: Answers) -> Rows | None:
    """On which windows both agree; None if they have no common target."""
    if TAILS in seen.answers and TAILS in before:
        return np.asarray(seen.answers[TAILS][:, 0] == before[TAILS][:, 0])
    alike = [
        _alike(target, seen.manifest, np.asarray(seen.answers[target.name]), np.asarray(before[target.name]))
        for target in _common(seen, before)
    ]
    return np.logical_and.reduce(alike) if alike else None


def _common(seen: BatchObservation, before: Answers) -> list[Target]:
    """Targets that both answer, in the same shape."""
    ours = seen.answers
    return [
        target
        for target in seen.manifest.predicted
        if target.name in ours
        and target.name in before
        and ours[target.name].shape == before[target.name].shape
    ]


def _alike(target: Target, manifest: BundleManifest, a: NDArray[Any], b: NDArray[Any]) -> Rows:
    if target.kind == "classification":
        return np.asarray(a.argmax(axis=1) == b.argmax(axis=1))
    if target.kind == "regression":
        return np.asarray(np.abs(a - b) <= _CLOSE * target.scale)
    scale = {m.name: m.scale for m in manifest.generated or ()}.get(target.modality or "", 1.0)
    square_B = np.square((a - b) / scale, dtype=np.float64).reshape(len(a), -1).mean(axis=1)
    return np.asarray(square_B <= _CLOSE**2)


def _class_counts(
    counts: Mapping[str, Mapping[int, int]], seen: BatchObservation, ours: Answers, theirs: Answers
) -> Any:
    """Counts of the predicted classes, of targets that both predict."""
    more = {name: dict(found) for name, found in counts.items()}
    for target in _common(seen, theirs if ours is seen.answers else ours):
        if target.kind == "classification":
            classes, times = np.unique(ours[target.name].argmax(axis=1), return_counts=True)
            told = dict(zip(classes.tolist(), times.tolist(), strict=True))
            more[target.name] = _with(more.get(target.name, {}), told)
    return more
