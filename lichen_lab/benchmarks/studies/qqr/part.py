"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lichen_lab.benchmarks.studies.qqr.settings import Flow, One, Outcome, Setting
from lichen_lab.benchmarks.study import part as base

ACCURACY: Final = "accuracy, %"
Results = base.PartResults[One, Outcome]
Variant = base.Variant[One, Outcome]


@dataclass(frozen=True, kw_only=True)
class Part(base.Part[One, Outcome]):
    """One part of the study."""

    figures: tuple[base.Figure[Outcome], ...] = (base.Figure(ACCURACY, lambda one: one.accuracy),)


def line(
    method: str, under: str, flow: Flow, config: Mapping[str, Any], *probes: str, **setting: Any
) -> Variant:
    """A line of a table: its title, its conditions in words, its windows, options and further settings."""
    return Variant(method, One(setting=Setting(config, **setting), conditions=flow, probes=probes), under)
