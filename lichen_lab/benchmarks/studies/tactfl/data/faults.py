"""What a broken device delivers. NumPy, seeded.

A fault changes what is measured, and nothing says so: the device trains on it as on anything else, and its
quality scores stay 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from models.contract import FloatArray, WindowSet

Fault = Callable[[FloatArray, np.random.Generator], FloatArray]
"""Of one modality's windows ``x_BCT``, what the broken sensor gives instead."""


def noise(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Nothing but white noise, each channel as strong as its signal was."""
    deviation_C = x_BCT.std(axis=(0, 2)) if len(x_BCT) else np.zeros(x_BCT.shape[1], np.float32)
    made: FloatArray = (rng.standard_normal(x_BCT.shape) * deviation_C[None, :, None]).astype(np.float32)
    return made


def flipped(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Axes with the wrong sign: one of the three, or two, the same ones in all windows."""
    sign_C = np.ones(x_BCT.shape[1], np.float32)
    sign_C[rng.permutation(x_BCT.shape[1])[: rng.integers(1, max(2, x_BCT.shape[1]))]] = -1
    return x_BCT * sign_C[None, :, None]


def stuck(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Every window holds its first sample: a sensor that repeats itself."""
    del rng
    return np.ascontiguousarray(np.broadcast_to(x_BCT[:, :, :1], x_BCT.shape))


FAULTS: Final[Mapping[str, Fault]] = {"noise": noise, "flipped": flipped, "stuck": stuck}
"""By name."""


def broken(windows: WindowSet, fault: str, rng: np.random.Generator) -> WindowSet:
    """The same windows as that fault makes them, in all modalities that are present; without context.

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
