"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from dataclasses import dataclass
from typing import Final

from lichen_lab.benchmarks.studies.tactfl.settings import HERE, TRAINED, One, Outcome
from lichen_lab.benchmarks.study import part as base

F1: Final = "F1, mean over classes, %"
ACCURACY: Final = "accuracy, %"
FIGURES: Final[tuple[base.Figure[Outcome], ...]] = (
    base.Figure(F1, Outcome.f1),
    base.Figure(ACCURACY, lambda one: one.scores[TRAINED][HERE]["accuracy"]),
)
Results = base.PartResults[One, Outcome]


@dataclass(frozen=True)
class Variant(base.Variant[One, Outcome]):
    """One line of a table.

    Attributes:
        end: which end of the run it shows: several lines may show one run.
        test: which test set.
    """

    end: str = TRAINED
    test: str = HERE

    def view(self, outcome: Outcome) -> Outcome:
        """What this line shows of a run."""
        return outcome.view(self.end, self.test)


@dataclass(frozen=True, kw_only=True)
class Part(base.Part[One, Outcome]):
    """One part of the study."""

    figures: tuple[base.Figure[Outcome], ...] = FIGURES
    worst: bool = True
