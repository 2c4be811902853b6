"""The main table: every method on the same fleets, paired seeds."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import F1, Part
from lichen_lab.benchmarks.study.part import least, lines

UNDER: Final = "10 % labelled"
FINE_TUNED: Final = 81.6
"""The F1 of contrast with fine-tuning in an independent reference; also the goal here."""

PART: Final = Part(
    name="table",
    place=1,
    title="every method on UCI-HAR, a tenth labelled at the coordinator",
    variants=lines(v.line, v.LINES, {UNDER: {}}),
    versus=(
        (n.TACTFL_TUNED, n.LABELLED_ONLY),
        (n.TACTFL_SHORTER_TUNED, n.LABELLED_ONLY),
        (n.TACTFL_TUNED, n.NO_CONTRAST_TUNED),
        (n.TACTFL_TUNED, n.AUTOENCODER_TUNED),
        (n.TACTFL_TUNED, n.NO_SIMILARITY_TUNED),
        *((n.TACTFL_TUNED, n.BASELINES[name]) for name in (n.FEDAVG, n.FEDOPT, n.FEDPROX, n.MOON)),
        (n.TACTFL, n.BASELINES[n.RANDOM]),
        (n.TACTFL, n.BASELINES[n.AUTOENCODER]),
        (n.TACTFL, n.NO_SIMILARITY),
        (n.TACTFL, n.TACTFL_PLAIN),
    ),
    goals=(
        Goal(F1, FINE_TUNED, above=True, setting=UNDER, method=n.TACTFL_SHORTER_TUNED, dataset=v.UCI_HAR),
        Goal(
            least(n.LABELLED_ONLY),
            0.0,
            above=True,
            setting=UNDER,
            method=n.TACTFL_SHORTER_TUNED,
            dataset=v.UCI_HAR,
        ),
    ),
)
