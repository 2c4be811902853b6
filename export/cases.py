"""What the parity gate feeds: batch sizes, sets of present modalities, windows. Pure."""

from collections.abc import Iterator
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.surface import PRESENT, Surface

BATCHES: Final = (1, 2, 7, 32)
MAX_MASKS: Final = 64
"""All masks up to six modalities; beyond: none, all, each one alone, each one missing, and some others."""
_SEED: Final = 20_260

Array = NDArray[np.float32]


def masks_of(modalities: int) -> list[tuple[bool, ...]]:
    """The sets of present modalities to try: all 2^M of them, or :data:`MAX_MASKS` where there are more."""
    if 2**modalities <= MAX_MASKS:
        return list(product((False, True), repeat=modalities))
    one = np.eye(modalities, dtype=bool)
    named = [np.zeros(modalities, bool), np.ones(modalities, bool), *one, *~one]
    rng = np.random.default_rng(_SEED)
    some = rng.random((MAX_MASKS, modalities)) > 0.5  # noqa: PLR2004 - a fair coin
    unique = dict.fromkeys(tuple(bool(b) for b in row) for row in [*named, *some])
    return list(unique)[:MAX_MASKS]


def _windows(surface: Surface, batch: int, rng: np.random.Generator) -> dict[str, Array]:
    """In raw units, spread as the task says that the sensors are."""
    return {
        m.name: (
            m.offset + m.scale * rng.standard_normal((batch, m.channels, surface.samples[m.name]))
        ).astype(np.float32)
        for m in surface.modalities
    }


def cases(surface: Surface) -> Iterator[tuple[str, dict[str, Array]]]:
    """Batch size and mask in words, and the inputs; NaN wherever a modality is missing."""
    rng = np.random.default_rng(_SEED)
    masks = np.array(masks_of(len(surface.modalities)), dtype=np.float32)
    for batch in BATCHES:
        x = _windows(surface, batch, rng)
        mixed = masks[np.arange(batch) % len(masks)]
        for words, present_BM in [
            *((_words(surface, mask), np.tile(mask, (batch, 1))) for mask in masks),
            ("a different mask in each window", mixed),
        ]:
            holes = {
                name: np.where(present_BM[:, m, None, None] > 0, x[name], np.float32(np.nan))
                for m, name in enumerate(surface.names)
            }
            yield f"batch {batch}, {words}", {PRESENT: present_BM, **holes}


def everything(surface: Surface) -> list[dict[str, Array]]:
    """The inputs that are timed: one window, then the largest batch, with all modalities."""
    rng = np.random.default_rng(_SEED)
    return [
        {PRESENT: np.ones((batch, len(surface.modalities)), np.float32), **_windows(surface, batch, rng)}
        for batch in (1, BATCHES[-1])
    ]


def _words(surface: Surface, mask: Array) -> str:
    there = [name for name, here in zip(surface.names, mask, strict=True) if here]
    return f"present: {', '.join(there) or 'nothing'}"
