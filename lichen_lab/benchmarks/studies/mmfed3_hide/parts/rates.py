"""How many features there are: r from a tenth to all."""

from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide import names as n
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Part

RATES: Final = (0.1, 0.3, 0.5, 0.7, 1.0)
_LINES: Final = (n.OURS, n.MMFEDE, n.MM_IND, n.MM_CEN, n.FEDE, n.S_IND)


def under(rate: float) -> str:
    """A rate in words."""
    return f"r = {rate:.0%}".replace("%", " %")


PART: Final = Part(
    name="rates",
    place=2,
    title="features that clients have, from a tenth to all",
    variants=tuple(v.usual(title, under(rate), rate=rate) for rate in RATES for title in _LINES),
    versus=((n.OURS, n.MMFEDE), (n.OURS, n.FEDE)),
)
