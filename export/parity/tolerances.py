"""How far outputs of an ONNX model are from torch's, in one measure for all outputs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.signature import Surface
from protocol.errors import Reason, Refused
from protocol.output_names import LOGITS, output_names
from protocol.tasks.task import Target

TOLERANCE: Final = 1e-4
"""Maximum difference of a probability. The argmax cannot change if its lead is over twice this."""
LOGIT_TOLERANCE: Final = 1e-3
"""Maximum difference relative to ``1 + |logit|``, because probabilities saturate. Values and windows: before
offset and scale."""
_ROUNDING: Final = 4
"""Additional float32 steps for a value in its unit, because a large offset rounds the sum."""

Array = NDArray[np.float32]
Gaps = dict[str, float]
"""Differences by output."""


@dataclass(frozen=True)
class Measure:
    """The measure of one output.

    Attributes:
        name: of the output.
        words: its description.
        tolerance: maximum gap.
        absolute: the plain difference; else it is relative to ``scale + |truth - offset|``.
        in_unit: offset and scale were applied to it.
    """

    name: str
    words: str
    tolerance: float
    absolute: bool = False
    offset: float = 0.0
    scale: float = 1.0
    in_unit: bool = False

    def gap(self, got: Array, want: Array) -> float:
        """The maximum over all elements; NaN if torch gave NaN."""
        off = np.abs(got - want)
        if self.absolute:
            return float(off.max())
        if not self.in_unit:
            return float((off / (1 + np.abs(want))).max())
        with np.errstate(invalid="ignore"):
            beyond = np.maximum(off - _ROUNDING * np.spacing(np.abs(want)), 0)
        size = self.scale + np.abs(want.astype(np.float64) - self.offset)
        return float((beyond / size).max())


def measures(surface: Surface) -> tuple[Measure, ...]:
    """The measures of all outputs, in the model's order."""
    return tuple(measure for target in surface.targets for measure in _of(target, surface))


def _of(target: Target, surface: Surface) -> Sequence[Measure]:
    names = output_names(target)
    if target.kind == "classification":
        probabilities, logits = names
        return (
            Measure(probabilities, probabilities, TOLERANCE, absolute=True),
            Measure(logits, logits.replace(LOGITS, "scores"), LOGIT_TOLERANCE),
        )
    unit = surface.generated.get(target.name, target)
    return [
        Measure(name, name, LOGIT_TOLERANCE, offset=unit.offset, scale=unit.scale, in_unit=True)
        for name in names
    ]


def gaps(measured: Sequence[Measure], got: Sequence[Array], want: Sequence[Array], where: str) -> Gaps:
    """Compare all outputs.

    Raises:
        Refused: a shape differs, or a gap is beyond its tolerance; the detail names each such output.
    """
    by_output: Gaps = {}
    for measure, mine, theirs in zip(measured, got, want, strict=True):
        if mine.shape != theirs.shape:
            raise Refused(
                Reason.WRONG_TENSORS, f"at {where} {measure.name} is {mine.shape}, in torch {theirs.shape}"
            )
        by_output[measure.name] = measure.gap(mine, theirs)
    # Also refuses NaN of torch.
    if not all(by_output[m.name] <= m.tolerance for m in measured):
        words = ", ".join(
            f"{m.words} by {by_output[m.name]:.2e} (at most {m.tolerance:.0e})" for m in measured
        )
        raise Refused(Reason.OUT_OF_BOUNDS, f"ONNX model and torch differ at {where}: {words}")
    return by_output


def largest(measured: Sequence[Measure], all_gaps: Sequence[Mapping[str, float]]) -> Gaps:
    """The maximum over all cases, by output."""
    return {m.name: max(gap[m.name] for gap in all_gaps) for m in measured}


def worst(measured: Sequence[Measure], by_output: Mapping[str, float], *, absolute: bool) -> float:
    """The maximum over all probabilities, or over all other outputs; 0 without any."""
    return max((by_output[m.name] for m in measured if m.absolute == absolute), default=0.0)
