"""Parts and lines of this study."""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide.settings import MmFed3Outcome, MmFed3Run
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

MRR: Final = "MRR, %"
METRICS: Final = {MRR: "mrr", "Hits@1, %": "hits1", "Hits@3, %": "hits3", "Hits@10, %": "hits10"}
Results = PartResults[MmFed3Run, MmFed3Outcome]
Line = StudyLine[MmFed3Run, MmFed3Outcome]


def best(name: str, outcome: MmFed3Outcome) -> float:
    """A figure on test facts in the round with the best validation figure, in %."""
    return 100 * outcome.best.test[name]


Part = partial(
    StudyPart[MmFed3Run, MmFed3Outcome],
    figures=tuple(Figure(metric, partial(best, name)) for metric, name in METRICS.items()),
    worst=True,
)
"""A part with the study's figures."""
