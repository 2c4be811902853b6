"""How fast devices train, beside PyKEEN: timed, no runs."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.mmfed3_hide import speed
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Part

PART: Final = Part(
    name="throughput",
    place=6,
    title="triples a second of local training, beside PyKEEN's RotatE; and how long a whole run takes",
    computed=speed.rows,
    goals=tuple(
        Goal(speed.TIMES, 1.0, above=True, setting=case.words, method=speed.OURS, dataset=case.graph)
        for case in speed.CASES
    ),
)
