"""The study of TACTFL: devices without labels, a coordinator with a few; all methods on each fleet.

Sun et al., TACTFL: Temporal Contrastive Training for Multi-modal Federated Learning with Similarity-guided
Model Aggregation, BMVC: its figures on UCI-HAR, and experiments beyond them.
"""

from dataclasses import replace
from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.data import fleets
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome, TactflRun
from lichen_lab.benchmarks.study.run_spec import play, quiet
from lichen_lab.benchmarks.study.study import Study


def run(one: TactflRun, tell: Say = quiet) -> TactflOutcome:
    """Make a run in this process; see :func:`lichen_lab.benchmarks.study.run_spec.play`."""
    fleet, outcome = play(fleets.fleet, f"{__name__}.baselines", one, tell)
    made: TactflOutcome = replace(outcome, kinds={member.name: member.kind for member in fleet.members})
    return made


STUDY: Final = Study(
    package=__name__,
    spec=TactflRun,
    outcome=TactflOutcome,
    run=run,
    sources=(
        "lichen_lab.benchmarks.studies.tactfl.baselines",
        "lichen_lab.benchmarks.studies.tactfl.data",
        "lichen_lab.benchmarks.studies.tactfl.federation",
        "lichen_lab.simulation.data.access",
        "lichen_lab.simulation.data.sets",
        "lichen_lab.simulation.training.guided",
    ),
    figures=(
        "lichen_lab.benchmarks.studies.tactfl.settings",
        "lichen_lab.benchmarks.studies.tactfl.shared",
    ),
    seeds=v.SEEDS,
)
BENCH: Final = STUDY.bench()
