"""Norms of an update by part of the model, which screening and clipping compare between devices.

A norm of the whole update would compare devices with one and with three encoders, and hide an exploding head
behind still encoders. So there is one by part: the tensor's blob, with running statistics apart, because they
follow the data and not the step size.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from models.contract import FloatArray, blob_of
from protocol.frames.together import groups_of, joined

_BLOCK: Final = 1 << 16
STATISTICS: Final = " statistics"
"""Suffix of parts of running statistics."""
FINE: Final = 0.125
"""Coarseness of vectors, relative to that of weights; of running statistics, relative to that of vectors."""
_RUNNING: Final = "running_"


@lru_cache(maxsize=4096)
def part_of(tensor: str) -> str:
    """The part that a tensor belongs to: its blob, or its blob's running statistics."""
    statistics = tensor.rsplit("/", 1)[-1].rsplit(".", 1)[-1].startswith(_RUNNING)
    return f"{blob_of(tensor)}{STATISTICS}" if statistics else blob_of(tensor)


def coarseness_of(tensor: str, values: FloatArray, coarseness: float) -> float:
    """The coarseness of steps (``protocol.frames.steps``) for a tensor: finer for vectors and statistics.

    They are few, and each of their values moves a whole channel. The variances of channels differ by orders
    of magnitude: a step of the largest would be many times the smallest.
    """
    if part_of(tensor).endswith(STATISTICS):
        return coarseness * FINE * FINE
    vector = values.ndim < 2  # noqa: PLR2004 - of a channel each
    return coarseness * FINE if vector else coarseness


def magnitudes(tensors: Mapping[str, FloatArray]) -> dict[str, float]:
    """The root mean square of each part's values; for parts of equal size it is proportional to the norm.

    The result does not depend on the order of tensors.
    """
    squares: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    ordered = {name: tensors[name] for name in sorted(tensors)}
    for names in groups_of(ordered):
        for name, square in zip(names, _sums_of_squares(ordered, names), strict=True):
            part = part_of(name)
            squares.setdefault(part, []).append(square)
            sizes[part] = sizes.get(part, 0) + ordered[name].size
    return {part: math.sqrt(math.fsum(all_) / max(1, sizes[part])) for part, all_ in squares.items()}


def _sums_of_squares(tensors: Mapping[str, FloatArray], names: Sequence[str]) -> list[float]:
    """:func:`sum_of_squares` of each tensor of a group."""
    if len(names) == 1:
        return [sum_of_squares(tensors[names[0]])]
    squares_N, sums, start = np.square(joined(tensors, names), dtype=np.float64), [], 0
    for name in names:
        end = start + tensors[name].size
        sums.append(float(np.add.reduce(squares_N[start:end])))
        start = end
    return sums


def sum_of_squares(tensor: FloatArray) -> float:
    """The sum of squares in float64, in blocks to bound temporaries."""
    flat = np.ascontiguousarray(tensor, np.float32).reshape(-1)
    blocks = (flat[start : start + _BLOCK].astype(np.float64) for start in range(0, flat.size, _BLOCK))
    return math.fsum(float(np.square(block).sum()) for block in blocks)
