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
"""Largest difference of a probability. The winner cannot change where its lead is over twice this."""
LOGIT_TOLERANCE: Final = 1e-3
"""Of ``1 + |logit|``: sees what saturated probabilities hide. Values and windows: as the network gives them,
before offset and scale."""
_ROUNDING: Final = 4
"""Steps of float32 that a value in its unit may be off besides: a large offset rounds what it is added to."""

Array = NDArray[np.float32]
Gaps = dict[str, float]
"""By output."""


@dataclass(frozen=True)
class Measure:
    """One output, and how two of it are compared.

    Attributes:
        name: in the ONNX model.
        words: it is called so in words.
        tolerance: largest gap.
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
        """The largest of all elements; NaN where torch gave one."""
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
    """One for each output, in the ONNX model's order."""
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
    found: Gaps = {}
    for one, mine, theirs in zip(measured, got, want, strict=True):
        if mine.shape != theirs.shape:
            raise Refused(
                Reason.WRONG_TENSORS, f"at {where} {one.name} is {mine.shape}, in torch {theirs.shape}"
            )
        found[one.name] = one.gap(mine, theirs)
    # Written so that NaN on torch's side refuses too.
    if not all(found[one.name] <= one.tolerance for one in measured):
        words = ", ".join(
            f"{one.words} by {found[one.name]:.2e} (at most {one.tolerance:.0e})" for one in measured
        )
        raise Refused(Reason.OUT_OF_BOUNDS, f"graph and torch differ at {where}: {words}")
    return found


def largest(measured: Sequence[Measure], all_gaps: Sequence[Mapping[str, float]]) -> Gaps:
    """By output, the largest of all cases."""
    return {one.name: max(each[one.name] for each in all_gaps) for one in measured}


def worst(measured: Sequence[Measure], by_output: Mapping[str, float], *, absolute: bool) -> float:
    """The largest of all probabilities, or of all that is not one; 0 where there is none."""
    return max((by_output[one.name] for one in measured if one.absolute == absolute), default=0.0)
