"""The study of MMFeD3-HidE: private graphs that share entities, features that are absent, fleets and bounds.

Zhang et al., Hyper-modal Imputation Diffusion Embedding with Dual-Distillation for Federated Multimodal
Knowledge Graph Completion: the order of its methods, on FB15K-237 with other features than the paper's.
"""

from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide import store as kept
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.run_spec import One, run
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import Outcome
from lichen_lab.benchmarks.study.parts import Parts
from lichen_lab.benchmarks.study.study import Study


def _order(one: One) -> tuple[int, str, str, str]:
    """Runs that go on from the same warm start follow each other."""
    return one.seed, one.graph, one.conditions.who, repr(one.setting.start())


STUDY: Final = Study[One, Outcome](
    name="mmfed3_hide",
    title="the MMFeD3-HidE study: completion of private graphs, absent features, bytes, throughput",
    parts=Parts(f"{__name__}.parts", "mmfed3_hide"),
    store=kept.store,
    run=run,
    report=f"{__name__}.report.page",
    seeds=v.SEEDS,
    order=_order,
)
BENCH: Final = STUDY.bench()
