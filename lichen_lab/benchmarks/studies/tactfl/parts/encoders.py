"""The encoders of the study and those of the paper."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import Part

ENCODERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "convolutions": {},
    f"{v.LSTM['depth']}-layer LSTM({v.LSTM['width']})": v.LSTM,
}
"""In words -> fields of the setting."""

PART: Final = Part(
    name="encoders",
    place=5,
    title="convolutions, and the paper's LSTM",
    variants=tuple(
        v.line(title, v.UCI_HAR, words, setting=setting)
        for words, setting in ENCODERS.items()
        for title in (n.BASELINES[n.RANDOM], n.LABELLED_ONLY, n.NO_CONTRAST_TUNED, n.TACTFL, n.TACTFL_TUNED)
    ),
    versus=(
        (n.TACTFL_TUNED, n.LABELLED_ONLY),
        (n.TACTFL_TUNED, n.NO_CONTRAST_TUNED),
        (n.TACTFL, n.BASELINES[n.RANDOM]),
    ),
)
