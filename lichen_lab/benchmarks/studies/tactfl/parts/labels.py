"""The share of windows that the coordinator has labels of (the paper's 1 - delta)."""

from collections.abc import Iterable
from typing import Final

from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.variants import Line, Part
from lichen_lab.benchmarks.study.part import lines

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
SCARCE: Final = (0.02, 0.05)
_TABLE: Final = 0.1
_FEWEST: Final = 15
_MOST: Final = 3
"""Times the table's passes: with the fewest labels, more passes help no method."""


def passes(share: float) -> int:
    """Passes over the labelled windows for at least as many steps as in the table."""
    usual = v.BASE[v.UCI_HAR].tune_epochs
    return max(min(usual, _FEWEST), min(_MOST * usual, round(usual * _TABLE / share)))


def _variants(shares: Iterable[float]) -> tuple[Line, ...]:
    unders = {
        f"{100 * share:.0f} % labelled": {
            "conditions": {"labelled": share},
            "setting": {"tune_epochs": passes(share)},
        }
        for share in shares
    }
    return lines(v.line, v.SHORT, unders)


LABELS: Final = Part(
    name="labels",
    place=4,
    title="the share of windows that is labelled, all others on the devices",
    variants=_variants(SHARES),
    versus=v.TUNED_AHEAD,
)
SCARCE_LABELS: Final = Part(
    name="scarce",
    place=10,
    title="few labels: shares under the paper's",
    variants=_variants(SCARCE),
    versus=v.TUNED_AHEAD,
    by_default=False,
)
