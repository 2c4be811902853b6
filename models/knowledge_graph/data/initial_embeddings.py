"""Initial embeddings: values derived from a key, the same on every machine. NumPy only.

A device that meets an entity for the first time, and the coordinator that merges changes, need its first
values without asking each other. Each value is a hash (splitmix64) of key, seed and column.

Shapes: E keys, D columns.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray
from models.knowledge_graph.data.keys import KEY_BYTES, Keys

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
_KEPT_BITS: Final = 24
"""Bits of a hash: as many as float32 holds exactly."""
_BLOCK: Final = 1 << 18
"""Values computed at a time: temporaries stay at some MiB."""
Hashes = NDArray[np.uint64]


def initial_rows(seed: int, keys_E16: Keys, dim: int, span: float) -> FloatArray:
    """First embeddings of entities (or relations), float32 ``(E, D)``, uniform in ``[-span, span]``.

    Args:
        seed: the task's.
        keys_E16: uint8.
        dim: D.
        span: the bound.
    """
    out_ED = np.empty((len(keys_E16), dim), np.float32)
    start_E = hashed(seed, keys_E16)
    column_D = np.arange(1, dim + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    step = max(1, _BLOCK // max(1, dim))
    for at in range(0, len(out_ED), step):
        bits_ED = _mixed(start_E[at : at + step, None] + column_D) >> np.uint64(64 - _KEPT_BITS)
        unit_ED = (bits_ED.astype(np.float64) + 0.5) / (1 << _KEPT_BITS)
        out_ED[at : at + step] = (2 * unit_ED - 1) * span
    return out_ED


def hashed(seed: int, *keys: Keys) -> Hashes:
    """A 64-bit number for each row of keys, of several tables row by row; ``(E,)``.

    Args:
        seed: another one gives other numbers.
        keys: ``(E, 16)`` uint8 each.
    """
    mixed_E = _mixed(np.full(len(keys[0]), (seed + _GOLDEN) & _MASK, np.uint64))
    for keys_E16 in keys:
        words_E2 = np.ascontiguousarray(keys_E16, np.uint8).reshape(-1, KEY_BYTES).view("<u8")
        for column in range(words_E2.shape[1]):
            mixed_E = _mixed(mixed_E ^ words_E2[:, column].astype(np.uint64)) + np.uint64(_GOLDEN)
    return mixed_E


def _mixed(x: Hashes) -> Hashes:
    """The last steps of splitmix64 (Steele et al. 2014); arrays wrap at 64 bits silently."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
