"""``lichen bench labels``: what the labels are worth that a device asks for, against as many random ones.

One run is a seeded fleet (:mod:`fleets`) whose people answer what a rule (:mod:`strategies`) asks. The fleet
trains (:mod:`federation`), or a linear classifier is fitted (:mod:`linear`). A part (:mod:`parts`) is a
table; rules and training are in :mod:`variants`.
"""

from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.labels import fleets
from lichen_lab.benchmarks.studies.labels import variants as v
from lichen_lab.benchmarks.studies.labels.settings import LabelOutcome, LabelRun
from lichen_lab.benchmarks.study.run_spec import play, quiet
from lichen_lab.benchmarks.study.study import Study


def run(one: LabelRun, tell: Say = quiet) -> LabelOutcome:
    """Make a run in this process; see :func:`lichen_lab.benchmarks.study.run_spec.play`."""
    made: LabelOutcome = play(fleets.fleet, f"{__name__}.runs", one, tell)[1]
    return made


STUDY: Final = Study(
    package=__name__,
    spec=LabelRun,
    outcome=LabelOutcome,
    run=run,
    sources=(
        "edge_agent.labels.proposals",
        "edge_agent.windows.quality",
        "lichen_lab.benchmarks.studies.labels.federation",
        "lichen_lab.benchmarks.studies.labels.fleets",
        "lichen_lab.benchmarks.studies.labels.linear",
        "lichen_lab.benchmarks.studies.labels.strategies",
        "lichen_lab.simulation.data.access",
        "lichen_lab.simulation.data.sensor_faults",
        "lichen_lab.simulation.data.sets",
    ),
    figures=("lichen_lab.benchmarks.studies.labels.settings",),
    seeds=v.SEEDS,
)
BENCH: Final = STUDY.bench()
