"""``lichen bench privacy``: what protection costs in accuracy, and what attacks find with it and without.

A run is a seeded fleet (:mod:`fleets`) that trains FedAvg under a table ``[privacy]`` (:mod:`federation`),
with the agent's clipping, the coordinator's checks and its noise; or an attack (:mod:`audit`). A part
(:mod:`parts`) is a table.
"""

from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.privacy import fleets
from lichen_lab.benchmarks.studies.privacy import variants as v
from lichen_lab.benchmarks.studies.privacy.settings import PrivacyOutcome, PrivacyRun
from lichen_lab.benchmarks.study.run_spec import play, quiet
from lichen_lab.benchmarks.study.study import Study


def run(one: PrivacyRun, tell: Say = quiet) -> PrivacyOutcome:
    """Make a run in this process; see :func:`lichen_lab.benchmarks.study.run_spec.play`."""
    made: PrivacyOutcome = play(fleets.fleet, f"{__name__}.methods", one, tell)[1]
    return made


STUDY: Final = Study(
    package=__name__,
    spec=PrivacyRun,
    outcome=PrivacyOutcome,
    run=run,
    sources=(
        "coordinator.selection.poisson",
        "lichen_lab.benchmarks.studies.privacy.audit",
        "lichen_lab.benchmarks.studies.privacy.federation",
        "lichen_lab.benchmarks.studies.privacy.fleets",
        "lichen_lab.benchmarks.studies.privacy.methods",
        "lichen_lab.simulation.data.access",
        "lichen_lab.simulation.data.sets",
        "lichen_lab.simulation.training.runner",
    ),
    figures=("lichen_lab.benchmarks.studies.privacy.settings",),
    seeds=v.SEEDS,
)
BENCH: Final = STUDY.bench()
