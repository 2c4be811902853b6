"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lichen_lab.benchmarks.studies.disentafl.settings import One, Outcome, fleet_mean
from lichen_lab.benchmarks.study import part as base

EVERYBODY: Final = "all devices in every round"
PERSONAL: Final = base.Figure[Outcome]("own models, mean over devices, %", lambda one: one.mean)
AGGREGATE: Final = base.Figure[Outcome](
    "what the fleet gives, mean over devices, %",
    lambda one: None if one.aggregate is None else fleet_mean(one.aggregate),
)
Results = base.PartResults[One, Outcome]


@dataclass(frozen=True)
class Variant(base.Variant[One, Outcome]):
    """One line of a table."""

    under: str = EVERYBODY


@dataclass(frozen=True, kw_only=True)
class Part(base.Part[One, Outcome]):
    """One part of the study."""

    figures: tuple[base.Figure[Outcome], ...] = (PERSONAL, AGGREGATE)


def of_kind(kind: str) -> Callable[[Outcome], float]:
    """The mean of the personal models over the devices of a kind."""

    def figure(outcome: Outcome) -> float:
        return fleet_mean({name: s for name, s in outcome.personal.items() if outcome.kinds[name] == kind})

    return figure
