"""Which of a round's updates lie far outside the round's own distribution: pure, and free of order.

Per part of the model (:mod:`models.aggregation.update_norms`), an update may reach ``factor`` times the
median of all the
round's updates that have the part, or of the last round's where that was more. The median is not moved by
fewer than half of the devices, however far these go. Of one or two updates no median can say which is right:
they are compared with the last round alone, and in the first round only with the method's absolute bounds.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from models.aggregation.update_norms import STATISTICS
from protocol.errors import Reason, Refused

Magnitudes = Mapping[str, float]
"""Part -> root mean square."""
MIN_FOR_MEDIAN: Final = 3
WEIGHT: Final = "header.weight"
"""The part under which an update's weight is compared."""
WEIGHT_LENIENCY: Final = 10.0
"""Weights count windows, and honest devices differ in those by more than their updates differ in length."""
STATISTICS_LENIENCY: Final = 4.0
"""Running statistics follow a device's data, and not its step size: honest ones reached 17 times the median
where trained values reached 6.5 (docs/robust-folds.md)."""


@dataclass(frozen=True)
class Screened:
    """What a screen found.

    Attributes:
        lost: device -> why its update is not folded.
        reference: part -> median of what is left; the next round's ``before``.
    """

    lost: dict[str, Refused]
    reference: dict[str, float]


def screen(found: Mapping[str, Magnitudes], before: Magnitudes, factor: float) -> Screened:
    """Compare a round's updates with each other, again and again until nobody more is lost.

    So a second screen of what is left finds nothing: folding again after a loss changes no verdict.

    Args:
        found: device -> its update's magnitudes.
        before: the reference of the last round; empty where there is none.
        factor: how many times the median is still taken; 0 takes all.
    """
    left, lost = dict(found), dict[str, Refused]()
    while True:
        middle = _medians(left)
        new = {} if factor <= 0 else _outliers(left, middle, before, factor)
        if not new:
            return Screened(lost, {part: value for part, (value, _) in middle.items()})
        lost |= new
        left = {device: parts for device, parts in left.items() if device not in new}


def _medians(found: Mapping[str, Magnitudes]) -> dict[str, tuple[float, int]]:
    """Per part, the lower median of the devices that have it, and how many these are."""
    by_part: dict[str, list[float]] = {}
    for parts in found.values():
        for part, value in parts.items():
            by_part.setdefault(part, []).append(value)
    return {part: (statistics.median_low(values), len(values)) for part, values in by_part.items()}


def _outliers(
    found: Mapping[str, Magnitudes],
    middle: Mapping[str, tuple[float, int]],
    before: Magnitudes,
    factor: float,
) -> dict[str, Refused]:
    limits: dict[str, float] = {}
    for part, (value, count) in middle.items():
        usual = max(value if count >= MIN_FOR_MEDIAN else 0.0, before.get(part, 0.0))
        if usual > 0:  # a part that hardly anybody moves says nothing
            limits[part] = factor * usual * _leniency(part)
    lost = {}
    for device in sorted(found):
        parts = found[device]
        far = {part: parts[part] / limits[part] for part in parts if part in limits}
        worst = max(sorted(far), key=far.__getitem__, default=None)
        if worst is not None and far[worst] > 1.0:
            lost[device] = Refused(Reason.OUTLIER, _words(worst, parts[worst], limits[worst], factor))
    return lost


def _leniency(part: str) -> float:
    if part == WEIGHT:
        return WEIGHT_LENIENCY
    return STATISTICS_LENIENCY if part.endswith(STATISTICS) else 1.0


def _words(part: str, value: float, limit: float, factor: float) -> str:
    return (
        f"{part!r} moves by {value:.4g} (root mean square); robust.outlier_factor {factor:g} takes at most "
        f"{limit:.4g} of it in this round"
    )
