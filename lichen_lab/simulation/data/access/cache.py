"""Cache of values computed from data. A cache that cannot be used costs only time."""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from lichen_lab.simulation.data.access.locations import cache_folder
from models import npz
from models.contract import FloatArray
from models.tensors import npz_bytes
from protocol.errors import LichenError
from runtime.storage.files import write_atomic

FOLDER: Final = "derived"
_VALUES: Final = "values"
_HEADERS: Final = 4096


def cached(key: str, shape: tuple[int, ...], compute: Callable[[], FloatArray]) -> FloatArray:
    """The array stored under ``key``, else the result of ``compute``, which is then stored.

    Args:
        key: a file name that changes with all that the values depend on.
        shape: of the array. What is kept in another shape or type, or is damaged, is not used.
        compute: float32 of that shape.
    """
    with contextlib.suppress(OSError, npz.BadNpz, LichenError):  # missing or damaged: computed again
        values = npz.read(_path(key), max_bytes=4 * math.prod(shape) + _HEADERS).get(_VALUES)
        if values is not None and values.shape == shape and values.dtype == np.float32:
            return values
    values = compute()
    with contextlib.suppress(OSError, LichenError):  # not writable, or full: only slower the next time
        write_atomic(_path(key), npz_bytes({_VALUES: values}))
    return values


def _path(key: str) -> Path:
    return cache_folder() / FOLDER / f"{key}.npz"
