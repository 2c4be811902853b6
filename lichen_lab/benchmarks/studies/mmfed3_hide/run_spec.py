"""Makes a run of the study. Imports torch only in a run."""

from dataclasses import replace
from functools import lru_cache

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.mmfed3_hide import fleets
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    GraphConditions,
    KnowledgeGraphFleet,
    MmFed3Outcome,
    MmFed3Run,
)
from lichen_lab.benchmarks.study.run_spec import quiet


def run(one: MmFed3Run, tell: Say = quiet) -> MmFed3Outcome:
    """Make a run in this process.

    Args:
        one: the run.
        tell: takes the progress.

    Raises:
        Misconfigured: no such graph or option, or a data set is not here.
    """
    from lichen_lab.benchmarks.studies.mmfed3_hide import federation  # noqa: PLC0415 - torch, only where runs are made

    fleet = _fleet(one.fleet, one.seed, one.conditions, one.small)
    if one.tuning:
        fleet = replace(fleet, judges=tuple(replace(j, test_N3=j.valid_N3) for j in fleet.judges))
    return federation.run(fleet, one.setting, one.seed, tell)


@lru_cache(maxsize=2)
def _fleet(name: str, seed: int, conditions: GraphConditions, small: bool) -> KnowledgeGraphFleet:  # noqa: FBT001 - fields of One
    """Build a fleet once for consecutive runs on it."""
    return fleets.fleet(name, seed, conditions, small=small)
