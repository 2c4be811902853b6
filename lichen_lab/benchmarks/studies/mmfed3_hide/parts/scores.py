"""Other scores of triples than RotatE."""

from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide import names as n
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Part

_LINES: Final = (n.S_IND, n.FEDE, n.OURS)

PART: Final = Part(
    name="scores",
    place=4,
    title="RotatE, TransE and ComplEx",
    variants=tuple(
        v.usual(title, words, setting={"score": score})
        for score, words in v.SCORES.items()
        for title in _LINES
    ),
)
