"""Outlier screen: updates far outside the round's own distribution. Pure, and independent of order.

Per part of the model (:mod:`models.aggregation.update_norms`), an update may reach ``factor`` times the
median of all the round's updates that have the part, or of the last round's if that was more. Fewer than half
of the devices cannot move the median, however extreme they are. Of one or two updates no median can tell
which is right: they are compared with the last round alone, and in the first round only with the method's
absolute bounds.
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
"""The part name for an update's weight; absent if it is 1."""
WEIGHT_LENIENCY: Final = 10.0
"""Weights count windows, and honest devices differ in those by more than their updates differ in length."""
STATISTICS_LENIENCY: Final = 4.0
"""Running statistics follow a device's data, not its step size: honest ones reached 17 times the median where
trained values reached 6.5 (docs/robust-folds.md)."""


@dataclass(frozen=True)
class Screened:
    """Result of a screen.

    Attributes:
        lost: device -> why its update is not folded.
        reference: part -> median of the rest; the next round's ``before``.
    """

    lost: dict[str, Refused]
    reference: dict[str, float]


def screen(found: Mapping[str, Magnitudes], before: Magnitudes, factor: float) -> Screened:
    """Compare a round's updates with each other, repeatedly until no further one is excluded.

    So a second screen of the rest excludes nothing: folding again after a loss changes no verdict.

    Args:
        found: device -> its update's magnitudes.
        before: the reference of the last round; empty if there is none.
        factor: the limit as a multiple of the median; 0 accepts all.
    """
    left, lost = dict(found), dict[str, Refused]()
    if any(WEIGHT in parts for parts in found.values()):  # otherwise a large one had only itself beside it
        left = {device: {WEIGHT: 1.0, **parts} for device, parts in found.items()}
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
        if usual > 0:  # a part that hardly any device changes says nothing
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
