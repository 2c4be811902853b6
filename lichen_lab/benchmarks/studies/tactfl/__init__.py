"""The study of TACTFL: fleets without labels, a coordinator with a few, every method on the same ones.

Sun et al., TACTFL: Temporal Contrastive Training for Multi-modal Federated Learning with Similarity-guided
Model Aggregation, BMVC: its figures on UCI-HAR, and what goes beyond them.
"""

from operator import attrgetter
from typing import Final

from lichen_lab.benchmarks.studies.tactfl import store as kept
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.run_spec import One, run
from lichen_lab.benchmarks.studies.tactfl.settings import Outcome
from lichen_lab.benchmarks.study.parts import Parts
from lichen_lab.benchmarks.study.study import Study

STUDY: Final = Study[One, Outcome](
    name="tactfl",
    title="the TACTFL study: no label on a device; missing modalities, shifted and broken devices",
    parts=Parts(f"{__name__}.parts", "tactfl"),
    store=kept.store,
    run=run,
    report=f"{__name__}.report.page",
    seeds=v.SEEDS,
    order=attrgetter("seed", "fleet"),
)
BENCH: Final = STUDY.bench()
