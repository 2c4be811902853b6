"""The study of DisentAFL: fleets whose devices differ in sensors and targets, every method on the same ones.

Chen and Zhang, On Disentanglement of Asymmetrical Knowledge Transfer for Modality-Task Agnostic Federated
Learning, AAAI 2024: their simulations, made from data that is at hand.
"""

from operator import attrgetter
from typing import Final

from lichen_lab.benchmarks.studies.disentafl import store as kept
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.run_spec import One, run
from lichen_lab.benchmarks.studies.disentafl.settings import Outcome
from lichen_lab.benchmarks.study.parts import Parts
from lichen_lab.benchmarks.study.study import Study

STUDY: Final = Study[One, Outcome](
    name="disentafl",
    title="the DisentAFL study: devices with different sensors and targets; ablation, bytes, cost",
    parts=Parts(f"{__name__}.parts", "disentafl"),
    store=kept.store,
    run=run,
    report=f"{__name__}.report.page",
    seeds=v.SEEDS,
    order=attrgetter("seed", "fleet"),
)
BENCH: Final = STUDY.bench()
