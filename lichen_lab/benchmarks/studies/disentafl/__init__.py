"""The study of DisentAFL: fleets whose devices differ in sensors and targets; all methods on each fleet.

Chen and Zhang, On Disentanglement of Asymmetrical Knowledge Transfer for Modality-Task Agnostic Federated
Learning, AAAI 2024: their simulations, on public data.
"""

from typing import Final

from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.run_spec import run
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome, DisentAflRun
from lichen_lab.benchmarks.study.study import Study

STUDY: Final = Study(
    package=__name__,
    title="the DisentAFL study: devices with different sensors and targets; ablation, bytes, cost",
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
