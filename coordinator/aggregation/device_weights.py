"""Device weights of guided rounds, for the operator: weights, similarities, warnings.

Each device has a row of similarities to all others. Up to :data:`FULL` devices the rows are stored whole;
beyond that, of each row its mean, least and most, and the :data:`NEAREST` others at either end, so the size
grows with the devices, not with their square.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import numpy as np

from models.guided import DeviceWeights

FULL: Final = 64
"""Devices of a part whose rows are stored whole."""
NEAREST: Final = 3
MAX_WARNINGS: Final = 20
_DIGITS: Final = 6
_MAX_WORDS: Final = 1000


class WeightRow(TypedDict):
    """Similarity of a device's view to the views of the others that have the part, -1 to 1.

    Attributes:
        of: how many others there are.
        mean: over them; likewise ``least`` and ``most``.
        others: device -> similarity; all, or those at either end.
    """

    of: int
    mean: float
    least: float
    most: float
    others: dict[str, float]


@dataclass(frozen=True)
class WeightReport:
    """Weights as they are stored, in plain JSON.

    Attributes:
        weights: part -> device -> share of that part's fold.
        similarity: part -> device -> row.
        warnings: as text.
        metrics: of the coordinator's training on the labelled windows.
    """

    weights: dict[str, dict[str, float]]
    similarity: dict[str, dict[str, WeightRow]]
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, float] | None = None

    def as_json(self) -> dict[str, Any]:
        """The report for ``history`` and ``explain``."""
        return {
            "weights": self.weights,
            "similarity": self.similarity,
            "warnings": list(self.warnings),
            "metrics": dict(self.metrics or {}),
        }


def shares(weights: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, str, float]]:
    """Part, device and weight in equal shares (1: the weight if all were equal); the lightest first."""
    found = [
        (part, device, weight * len(devices))
        for part, devices in weights.items()
        for device, weight in devices.items()
    ]
    yield from sorted(found, key=lambda one: (one[2], one[1], one[0]))


def kept(weighing: DeviceWeights, metrics: Mapping[str, float]) -> WeightReport:
    """The report on a weighing; pure."""
    return WeightReport(
        weights={
            part: {device: _short(weight) for device, weight in sorted(weights.items())}
            for part, weights in sorted(weighing.weights.items())
        },
        similarity={
            part: {device: _row(device, row) for device, row in sorted(rows.items())}
            for part, rows in sorted(weighing.similarity.items())
        },
        warnings=tuple(words[:_MAX_WORDS] for words in weighing.warnings[:MAX_WARNINGS]),
        metrics={name: _short(value) for name, value in sorted(metrics.items()) if math.isfinite(value)},
    )


def _row(device: str, row: Mapping[str, float]) -> WeightRow:
    names, value_K = list(row), np.fromiter(row.values(), np.float64, len(row))
    if device in row:
        own = names.index(device)
        del names[own]
        value_K = np.delete(value_K, own)
    if not names:
        return WeightRow(of=0, mean=0.0, least=0.0, most=0.0, others={})
    order_K = np.argsort(-value_K, kind="stable")
    ends_K = order_K if len(names) < FULL else np.concatenate([order_K[:NEAREST], order_K[-NEAREST:]])
    return WeightRow(
        of=len(names),
        mean=_short(float(value_K.mean())),
        least=_short(float(value_K.min())),
        most=_short(float(value_K.max())),
        others={names[k]: _short(float(value_K[k])) for k in ends_K},
    )


def _short(value: float) -> float:
    """Six digits, for people. A value that is not finite is 0, because JSON cannot hold it."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else 0.0
