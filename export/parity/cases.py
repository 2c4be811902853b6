"""Inputs of the parity gate: batch sizes, time lengths, masks of modalities, windows. Pure."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.signature import PRESENT, Surface

BATCHES: Final = (1, 2, 7, 32)
MAX_MASKS: Final = 64
"""All masks up to six modalities; beyond: none, all, each alone, each missing, and some others."""
LENGTHS: Final = ((1, 2, 0), (1, 1, 1), (2, 1, 0))
"""Other time lengths than T: half of it, one sample more, twice of it, as ``T * a // b + c``."""
_SEED: Final = 20_260

Array = NDArray[np.float32]


def masks_of(modalities: int) -> list[tuple[bool, ...]]:
    """The masks to test: all 2^M, or at most :data:`MAX_MASKS`."""
    if 2**modalities <= MAX_MASKS:
        return list(product((False, True), repeat=modalities))
    single = np.eye(modalities, dtype=bool)
    named = [np.zeros(modalities, bool), np.ones(modalities, bool), *single, *~single]
    rng = np.random.default_rng(_SEED)
    some = rng.random((MAX_MASKS, modalities)) > 0.5  # noqa: PLR2004 - a fair coin
    unique = dict.fromkeys(tuple(bool(b) for b in row) for row in [*named, *some])
    return list(unique)[:MAX_MASKS]


def lengths_of(surface: Surface) -> list[dict[str, int]]:
    """The time lengths to test, by modality: T, and others of those that the model takes at any length."""
    lengths = [{name: surface.samples[name] for name in surface.names}]
    for a, b, c in LENGTHS:
        other = {
            name: max(1, t * a // b + c) if name in surface.any_length else t
            for name, t in lengths[0].items()
        }
        if other not in lengths:
            lengths.append(other)
    return lengths


def cases(surface: Surface) -> Iterator[tuple[str, dict[str, Array]]]:
    """Descriptions of batch size, mask and length, and the inputs; NaN for missing modalities.

    Windows of the task's length: every batch size with every mask. Windows of another length: one complete
    window, and a batch with a window for each mask.
    """
    rng = np.random.default_rng(_SEED)
    masks = np.array(masks_of(len(surface.modalities)), dtype=np.float32)
    own, *others = lengths_of(surface)
    for batch in BATCHES:
        x = _windows(surface, own, batch, rng)
        for words, present_BM in [
            *((_words(surface, mask), np.tile(mask, (batch, 1))) for mask in masks),
            ("a different mask in each window", masks[np.arange(batch) % len(masks)]),
        ]:
            yield f"batch {batch}, {words}", _inputs(surface, present_BM, x)
    for length in others:
        where = ", ".join(f"{samples} of {name}" for name, samples in length.items())
        whole = np.ones((1, masks.shape[1]), np.float32)
        for words, present_BM in ((_words(surface, whole[0]), whole), ("each mask once", masks)):
            x = _windows(surface, length, len(present_BM), rng)
            yield f"batch {len(present_BM)}, {words}, samples: {where}", _inputs(surface, present_BM, x)


def everything(surface: Surface) -> list[dict[str, Array]]:
    """The inputs to measure latency: one window, then the largest batch, with all modalities."""
    rng = np.random.default_rng(_SEED)
    return [
        {
            PRESENT: np.ones((batch, len(surface.modalities)), np.float32),
            **_windows(surface, surface.samples, batch, rng),
        }
        for batch in (1, BATCHES[-1])
    ]


def _windows(
    surface: Surface, samples: Mapping[str, int], batch: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Windows in raw units, with the task's offset and scale of the sensors."""
    return {
        m.name: (m.offset + m.scale * rng.standard_normal((batch, m.channels, samples[m.name]))).astype(
            np.float32
        )
        for m in surface.modalities
    }


def _inputs(surface: Surface, present_BM: Array, x: Mapping[str, Array]) -> dict[str, Array]:
    holes = {
        name: np.where(present_BM[:, m, None, None] > 0, x[name], np.float32(np.nan))
        for m, name in enumerate(surface.names)
    }
    return {PRESENT: present_BM, **holes}


def _words(surface: Surface, mask: Array) -> str:
    names = [name for name, present in zip(surface.names, mask, strict=True) if present]
    return f"present: {', '.join(names) or 'nothing'}"
