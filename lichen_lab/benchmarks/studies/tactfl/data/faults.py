"""Windows of broken devices. NumPy, seeded.

A fault changes the measurements without any sign: the device trains on them as usual, and its quality scores
stay 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from models.contract import FloatArray, WindowSet

Fault = Callable[[FloatArray, np.random.Generator], FloatArray]
"""Replaces the windows ``x_BCT`` of one modality by those of a broken sensor."""


def noise(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """White noise, each channel as strong as its signal."""
    deviation_C = x_BCT.std(axis=(0, 2)) if len(x_BCT) else np.zeros(x_BCT.shape[1], np.float32)
    made: FloatArray = (rng.standard_normal(x_BCT.shape) * deviation_C[None, :, None]).astype(np.float32)
    return made


def flipped(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """One or two of the three axes with the wrong sign, the same in all windows."""
    sign_C = np.ones(x_BCT.shape[1], np.float32)
    sign_C[rng.permutation(x_BCT.shape[1])[: rng.integers(1, max(2, x_BCT.shape[1]))]] = -1
    return x_BCT * sign_C[None, :, None]


def stuck(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """A stuck sensor: every window repeats its first sample."""
    del rng
    return np.ascontiguousarray(np.broadcast_to(x_BCT[:, :, :1], x_BCT.shape))


FAULTS: Final[Mapping[str, Fault]] = {"noise": noise, "flipped": flipped, "stuck": stuck}
"""Name -> fault."""


def broken(windows: WindowSet, fault: str, rng: np.random.Generator) -> WindowSet:
    """Apply a fault to all present modalities of the windows; drops the context.

    Raises:
        KeyError: there is no such fault.
    """
    change = FAULTS[fault]
    x = {}
    for column, (name, x_BCT) in enumerate(windows.x.items()):
        here_B = windows.present_BM[:, column]
        made_BCT = x_BCT.copy()
        made_BCT[here_B] = change(x_BCT[here_B], rng)
        x[name] = made_BCT
    return replace(windows, x=x, context=None)
