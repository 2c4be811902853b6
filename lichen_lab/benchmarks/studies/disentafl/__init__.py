"""The study of DisentAFL: fleets whose devices differ in sensors and targets; all methods on each fleet.

Chen and Zhang, On Disentanglement of Asymmetrical Knowledge Transfer for Modality-Task Agnostic Federated
Learning, AAAI 2024: their simulations, on public data.
"""

from dataclasses import replace
from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.data import fleets
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome, DisentAflRun
from lichen_lab.benchmarks.study.run_spec import play, quiet
from lichen_lab.benchmarks.study.study import Study


def run(one: DisentAflRun, tell: Say = quiet) -> DisentAflOutcome:
    """Make a run in this process; see :func:`lichen_lab.benchmarks.study.run_spec.play`."""
    fleet, outcome = play(fleets.fleet, f"{__name__}.baselines", one, tell)
    made: DisentAflOutcome = replace(outcome, kinds={member.name: member.kind for member in fleet.members})
    return made


STUDY: Final = Study(
    package=__name__,
    spec=DisentAflRun,
    outcome=DisentAflOutcome,
    run=run,
    sources=(
        "coordinator.selection.policies",
        "lichen_lab.benchmarks.studies.disentafl.baselines",
        "lichen_lab.benchmarks.studies.disentafl.data",
        "lichen_lab.benchmarks.studies.disentafl.federation",
        "lichen_lab.simulation.data.access",
        "lichen_lab.simulation.data.sets",
    ),
    figures=(
        "lichen_lab.benchmarks.studies.disentafl.scores",
        "lichen_lab.benchmarks.studies.disentafl.settings",
    ),
    seeds=v.SEEDS,
)
BENCH: Final = STUDY.bench()
