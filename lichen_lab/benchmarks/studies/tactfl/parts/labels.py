"""The share of windows that the coordinator has labels of (the paper's 1 - delta)."""

from collections.abc import Iterable
from typing import Final

from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import Line, Part

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
_TABLE: Final = 0.1
_FEWEST: Final = 15
_MOST: Final = 3
"""Times the table's: where labels are fewest, more passes help nobody."""


def passes(share: float) -> int:
    """Over the labelled windows, encoders and head together: as many steps as in the table, or some more."""
    usual = v.BASE[v.UCI_HAR].tune_epochs
    return max(min(usual, _FEWEST), min(_MOST * usual, round(usual * _TABLE / share)))


def lines(shares: Iterable[float]) -> tuple[Line, ...]:
    """The part's lines at these shares."""
    return tuple(
        v.line(
            title,
            v.UCI_HAR,
            f"{100 * share:.0f} % labelled",
            conditions={"labelled": share},
            setting={"tune_epochs": passes(share)},
        )
        for share in shares
        for title in (n.BASELINES[n.RANDOM], n.LABELLED_ONLY, n.NO_CONTRAST_TUNED, n.TACTFL, n.TACTFL_TUNED)
    )


VERSUS: Final = ((n.TACTFL_TUNED, n.LABELLED_ONLY), (n.TACTFL_TUNED, n.NO_CONTRAST_TUNED))
PART: Final = Part(
    name="labels",
    place=4,
    title="the share of windows that is labelled, all others on the devices",
    variants=lines(SHARES),
    versus=VERSUS,
)
