"""Parts and lines of this study."""

from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun, QqrSetting, StreamConditions
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

ACCURACY: Final = "accuracy, %"
Results = PartResults[QqrRun, QqrOutcome]
Line = StudyLine[QqrRun, QqrOutcome]
Part = partial(StudyPart[QqrRun, QqrOutcome], figures=(Figure[QqrOutcome](ACCURACY, attrgetter("accuracy")),))
"""A part with the study's figure."""


def line(
    method: str,
    under: str,
    flow: StreamConditions,
    config: Mapping[str, Any],
    *probes: str,
    fleet: str = "uci-har",
    **setting: Any,
) -> Line:
    """A line of a table: its title, its conditions in words, its windows, options and further settings."""
    run = QqrRun(fleet, setting=QqrSetting(config, **setting), conditions=flow, probes=probes)
    return Line(method, run, under)
