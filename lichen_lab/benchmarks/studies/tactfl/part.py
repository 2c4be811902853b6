"""Parts and lines of this study."""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.tactfl.settings import HERE, TRAINED, TactflOutcome, TactflRun
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

F1: Final = "F1, mean over classes, %"
ACCURACY: Final = "accuracy, %"
FIGURES: Final[tuple[Figure[TactflOutcome], ...]] = (
    Figure(F1, TactflOutcome.f1),
    Figure(ACCURACY, lambda outcome: outcome.scores[TRAINED][HERE]["accuracy"]),
)
Results = PartResults[TactflRun, TactflOutcome]
Line = StudyLine[TactflRun, TactflOutcome]
Part = partial(StudyPart[TactflRun, TactflOutcome], figures=FIGURES, worst=True)
"""A part with the study's figures."""


def line(method: str, run: TactflRun, under: str, end: str = TRAINED, test: str = HERE) -> Line:
    """A line of a table that shows one end of a run on one test set; several lines may show one run."""
    return Line(method, run, under, lambda outcome: outcome.view(end, test))
