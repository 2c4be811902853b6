"""``lichen bench qqr``: the study of the QQR paper, its baselines, and experiments beyond it.

One run (:mod:`run_spec`) is a seeded fleet on one setting (:mod:`settings`). A part (:mod:`parts`) is a
table: variants as data, rows from their runs. Runs that several parts need are made once, with all probes
that the parts need. The methods and their options are in :mod:`variants`.
"""

from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun
from lichen_lab.benchmarks.study.study import Study


def run(one: QqrRun) -> QqrOutcome:
    """Make a run in this process."""
    from lichen_lab.benchmarks.studies.qqr.run_spec import run  # noqa: PLC0415 - torch, only where runs are made

    return run(one)


STUDY: Final = Study(
    package=__name__,
    spec=QqrRun,
    outcome=QqrOutcome,
    run=run,
    sources=(
        "edge_agent.inference.onnx_models.encoder_model",
        "export.encoder_models",
        "lichen_lab.simulation.data.access",
        "lichen_lab.simulation.data.dataset_tasks",
        "lichen_lab.simulation.data.online_fleet",
        "lichen_lab.simulation.data.sets",
        "lichen_lab.simulation.data.streams",
    ),
    figures=(
        "lichen_lab.benchmarks.studies.qqr.run_spec",
        "lichen_lab.benchmarks.studies.qqr.probes",
        "lichen_lab.benchmarks.studies.qqr.settings",
    ),
    seeds=v.SEEDS,
)
BENCH: Final = STUDY.bench()
