"""Values rounded to multiples of a fixed power of two, within a bound; the codec ``steps`` writes them.

Unlike ``steps`` by itself, the step does not depend on the values: so the numbers of all devices add
up (secure aggregation). Pure.
"""

from collections.abc import Mapping

import numpy as np

from protocol.errors import Reason, Refused
from protocol.frames.uniform_quantizer import FloatArray


def rounded(values: FloatArray, fraction_bits: int, level: int) -> FloatArray:
    """The nearest multiples of ``2 ** -fraction_bits`` of at most ``level`` steps: exact in float32.

    Args:
        values: any shape, finite.
        fraction_bits: of a step.
        level: at most ``2 ** 23``.
    """
    scaled = np.multiply(values, np.float64(2.0**fraction_bits), dtype=np.float64)
    np.rint(scaled, out=scaled)
    np.clip(scaled, -level, level, out=scaled)
    scaled *= 2.0**-fraction_bits
    exact: FloatArray = scaled.astype(np.float32)
    return exact


def all_rounded(
    tensors: Mapping[str, FloatArray],
    carry: Mapping[str, FloatArray],
    fraction_bits: int,
    level: int,
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Tensors with the rounding errors of earlier rounds added, rounded; and the new errors.

    Args:
        tensors: by name, finite.
        carry: of the previous round, of the same shapes; a tensor may have none.
        fraction_bits: of a step.
        level: largest magnitude in steps; what is beyond stays in the carry.

    Raises:
        Refused: NON_FINITE: a tensor and its carry together are not finite.
    """
    made: dict[str, FloatArray] = {}
    left: dict[str, FloatArray] = {}
    for name, tensor in tensors.items():
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add(tensor, carry[name], dtype=np.float32) if name in carry else tensor
        if not np.isfinite(total).all():
            raise Refused(Reason.NON_FINITE, f"a value is not finite in tensor {name!r}")
        made[name] = rounded(total, fraction_bits, level)
        left[name] = np.subtract(total, made[name], dtype=np.float32)
    return made, left
