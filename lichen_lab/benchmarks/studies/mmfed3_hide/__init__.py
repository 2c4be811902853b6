"""The study of MMFeD3-HidE: private graphs with shared entities, missing features, fleets and bounds.

Zhang et al., Hyper-modal Imputation Diffusion Embedding with Dual-Distillation for Federated Multimodal
Knowledge Graph Completion: the order of its methods, on FB15K-237 with other features than the paper's.
"""

from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.mmfed3_hide import fleets
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import MmFed3Outcome, MmFed3Run
from lichen_lab.benchmarks.study.run_spec import play, quiet
from lichen_lab.benchmarks.study.study import Study


def run(one: MmFed3Run, tell: Say = quiet) -> MmFed3Outcome:
    """Make a run in this process; see :func:`lichen_lab.benchmarks.study.run_spec.play`."""
    outcome: MmFed3Outcome = play(fleets.fleet, f"{__name__}.federation", one, tell)[1]
    return outcome


def _order(one: MmFed3Run) -> tuple[int, str, str, str]:
    """Runs with the same warm start follow each other."""
    return one.seed, one.fleet, one.conditions.who, repr(one.setting.start())


STUDY: Final = Study(
    package=__name__,
    spec=MmFed3Run,
    outcome=MmFed3Outcome,
    run=run,
    sources=(
        "lichen_lab.benchmarks.studies.mmfed3_hide.federation",
        "lichen_lab.benchmarks.studies.mmfed3_hide.fleets",
        "lichen_lab.benchmarks.studies.mmfed3_hide.uneven_features",
        "lichen_lab.simulation.data.access",
        "lichen_lab.simulation.data.sets.fb15k237",
    ),
    figures=(
        "lichen_lab.benchmarks.studies.mmfed3_hide.settings",
        "lichen_lab.benchmarks.studies.mmfed3_hide.shared",
    ),
    seeds=v.SEEDS,
    order=_order,
)
BENCH: Final = STUDY.bench()
