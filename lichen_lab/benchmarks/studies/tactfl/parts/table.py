"""The main table: every method on the same fleets, paired seeds."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.variants import F1, Part
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
        (v.TACTFL_TUNED, v.LABELLED_ONLY),
        (v.TACTFL_SHORTER_TUNED, v.LABELLED_ONLY),
        (v.TACTFL_TUNED, v.NO_CONTRAST_TUNED),
        (v.TACTFL_TUNED, v.AUTOENCODER_TUNED),
        (v.TACTFL_TUNED, v.NO_SIMILARITY_TUNED),
        *((v.TACTFL_TUNED, v.BASELINES[name]) for name in (v.FEDAVG, v.FEDOPT, v.FEDPROX, v.MOON)),
        (v.TACTFL, v.BASELINES[v.RANDOM]),
        (v.TACTFL, v.BASELINES[v.AUTOENCODER]),
        (v.TACTFL, v.NO_SIMILARITY),
        (v.TACTFL, v.TACTFL_PLAIN),
    ),
    goals=(
        Goal(F1, FINE_TUNED, above=True, setting=UNDER, method=v.TACTFL_SHORTER_TUNED, dataset=v.UCI_HAR),
        Goal(
            least(v.LABELLED_ONLY),
            0.0,
            above=True,
            setting=UNDER,
            method=v.TACTFL_SHORTER_TUNED,
            dataset=v.UCI_HAR,
        ),
    ),
)
