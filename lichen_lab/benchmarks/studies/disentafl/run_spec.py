"""Makes a run of the study. Imports torch only in a run."""

from dataclasses import replace
from functools import lru_cache

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.disentafl.data import fleets
from lichen_lab.benchmarks.studies.disentafl.names import OURS
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome, DisentAflRun, TargetFleet
from lichen_lab.benchmarks.study.run_spec import quiet


def run(one: DisentAflRun, tell: Say = quiet) -> DisentAflOutcome:
    """Make a run in this process.

    Args:
        one: the run.
        tell: takes the progress.

    Raises:
        Misconfigured: no such fleet, method or option, or a data set is not here.
    """
    from lichen_lab.benchmarks.studies.disentafl import federation  # noqa: PLC0415 - torch, only where runs are made
    from lichen_lab.benchmarks.studies.disentafl.baselines import RUNS  # noqa: PLC0415 - likewise

    fleet = _fleet(one.fleet, one.seed, one.tuning, one.small)
    outcome = {OURS: federation.run, **RUNS}[one.method](fleet, one.setting, one.seed, tell)
    return replace(outcome, kinds={member.name: member.kind for member in fleet.members})


@lru_cache(maxsize=2)
def _fleet(name: str, seed: int, tuning: bool, small: bool) -> TargetFleet:  # noqa: FBT001 - fields of One
    """Build a fleet once for consecutive runs on it."""
    whole = fleets.fleet(name, seed, small=small)
    return fleets.tuning(whole, seed) if tuning else whole
