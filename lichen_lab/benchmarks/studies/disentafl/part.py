"""Parts and lines of this study."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final

from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome, DisentAflRun, fleet_mean
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

EVERYBODY: Final = "all devices in every round"
PERSONAL: Final = Figure[DisentAflOutcome]("own models, mean over devices, %", attrgetter("mean"))
AGGREGATE: Final = Figure[DisentAflOutcome](
    "what the fleet gives, mean over devices, %",
    lambda outcome: None if outcome.aggregate is None else fleet_mean(outcome.aggregate),
)
Results = PartResults[DisentAflRun, DisentAflOutcome]
Line = StudyLine[DisentAflRun, DisentAflOutcome]
Part = partial(StudyPart[DisentAflRun, DisentAflOutcome], figures=(PERSONAL, AGGREGATE))
"""A part with the study's figures."""


def of_kind(kind: str) -> Callable[[DisentAflOutcome], float]:
    """The mean of the personal models over the devices of a kind."""

    def figure(outcome: DisentAflOutcome) -> float:
        return fleet_mean({name: s for name, s in outcome.personal.items() if outcome.kinds[name] == kind})

    return figure
