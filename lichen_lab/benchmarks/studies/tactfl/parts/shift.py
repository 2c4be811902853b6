"""Devices that are worn differently: HAPT's raw streams, turned, tilted and slowed down."""

from collections.abc import Mapping
from typing import Final

from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.data.hapt import SHIFTS, WORN
from lichen_lab.benchmarks.studies.tactfl.settings import HERE
from lichen_lab.benchmarks.studies.tactfl.variants import Line, Part
from lichen_lab.benchmarks.study.part import lines

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "worn alike": (),
    "worn elsewhere": ("placement",),
    "worn askew": ("gravity",),
    "slower sensors": ("rate",),
    "all three": SHIFTS,
}


def _variants() -> tuple[Line, ...]:
    made: list[Line] = []
    for words, shift in WORDS.items():
        titles = v.SHORT + (v.EQUAL if shift == SHIFTS else ())
        for test in (HERE, WORN) if shift else (HERE,):
            changes = {"fleet": v.HAPT, "conditions": {"shift": shift}, "test": test}
            made += lines(v.line, titles, {f"{words}; judged on {test}": changes})
    return tuple(made)


PART: Final = Part(
    name="shift",
    place=7,
    title="devices worn in different ways (HAPT, a person each)",
    variants=_variants(),
    versus=(*v.AHEAD, (v.TACTFL, v.NO_SIMILARITY)),
)
