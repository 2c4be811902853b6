"""Makes a run of the study. Imports torch only in a run."""

from dataclasses import replace
from functools import lru_cache

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.tactfl.data import fleets
from lichen_lab.benchmarks.studies.tactfl.names import OURS
from lichen_lab.benchmarks.studies.tactfl.settings import (
    DealConditions,
    TactflOutcome,
    TactflRun,
    UnlabelledFleet,
)
from lichen_lab.benchmarks.study.run_spec import quiet


def run(one: TactflRun, tell: Say = quiet) -> TactflOutcome:
    """Make a run in this process.

    Args:
        one: the run.
        tell: takes the progress and the warnings of a round.

    Raises:
        Misconfigured: no such fleet, method or option, or a data set is not here.
    """
    from lichen_lab.benchmarks.studies.tactfl import federation  # noqa: PLC0415 - torch, only where runs are made
    from lichen_lab.benchmarks.studies.tactfl.baselines import RUNS  # noqa: PLC0415 - likewise

    fleet = _fleet(one.fleet, one.seed, one.conditions, one.tuning, one.small)
    outcome = {OURS: federation.run, **RUNS}[one.method](fleet, one.setting, one.seed, tell)
    return replace(outcome, kinds={member.name: member.kind for member in fleet.members})


@lru_cache(maxsize=2)
def _fleet(
    name: str,
    seed: int,
    conditions: DealConditions,
    tuning: bool,  # noqa: FBT001
    small: bool,  # noqa: FBT001
) -> UnlabelledFleet:
    """Build a fleet once for consecutive runs on it."""
    return fleets.fleet(name, seed, conditions, tuning=tuning, small=small)
