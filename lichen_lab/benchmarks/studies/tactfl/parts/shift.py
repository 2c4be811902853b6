"""Devices that are worn differently: HAPT's raw streams, turned, tilted and slowed down."""

from collections.abc import Mapping
from typing import Final

from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.data.hapt import SHIFTS, WORN
from lichen_lab.benchmarks.studies.tactfl.part import Line, Part
from lichen_lab.benchmarks.studies.tactfl.settings import HERE

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "worn alike": (),
    "worn elsewhere": ("placement",),
    "worn askew": ("gravity",),
    "slower sensors": ("rate",),
    "all three": SHIFTS,
}
_EVERYWHERE: Final = (n.BASELINES[n.RANDOM], n.LABELLED_ONLY, n.NO_CONTRAST_TUNED, n.TACTFL, n.TACTFL_TUNED)
_WITH_ALL: Final = (n.NO_SIMILARITY, n.NO_SIMILARITY_TUNED)


def _variants() -> tuple[Line, ...]:
    made = []
    for words, shift in WORDS.items():
        titles = _EVERYWHERE + (_WITH_ALL if shift == SHIFTS else ())
        for test in (HERE, WORN) if shift else (HERE,):
            under = f"{words}; judged on {test}"
            made += [v.line(t, v.HAPT, under, conditions={"shift": shift}, test=test) for t in titles]
    return tuple(made)


PART: Final = Part(
    name="shift",
    place=7,
    title="devices worn in different ways (HAPT, a person each)",
    variants=_variants(),
    versus=(
        (n.TACTFL_TUNED, n.LABELLED_ONLY),
        (n.TACTFL_TUNED, n.NO_CONTRAST_TUNED),
        (n.TACTFL, n.BASELINES[n.RANDOM]),
        (n.TACTFL, n.NO_SIMILARITY),
    ),
)
