"""What the parity gate feeds: batch sizes, time lengths, sets of present modalities, windows. Pure."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.signature import PRESENT, Surface

BATCHES: Final = (1, 2, 7, 32)
MAX_MASKS: Final = 64
"""All masks up to six modalities; beyond: none, all, each one alone, each one missing, and some others."""
LENGTHS: Final = ((1, 2, 0), (1, 1, 1), (2, 1, 0))
"""Other time lengths than T: half of it, one sample more, twice of it, as ``T * a // b + c``."""
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


def lengths_of(surface: Surface) -> list[dict[str, int]]:
    """The time lengths to try, by modality: T, and others where the ONNX model says that it takes any."""
    found = [{name: surface.samples[name] for name in surface.names}]
    for a, b, c in LENGTHS if surface.any_length else ():
        other = {name: max(1, t * a // b + c) for name, t in found[0].items()}
        if other not in found:
            found.append(other)
    return found


def cases(surface: Surface) -> Iterator[tuple[str, dict[str, Array]]]:
    """Batch size, mask and length in words, and the inputs; NaN wherever a modality is missing.

    With windows of the task's length every batch size meets every mask. With those of another length: one
    window of everything, and a batch that holds a window for each mask.
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
    """The inputs that are timed: one window, then the largest batch, with all modalities."""
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
    """In raw units, spread as the task says that the sensors are."""
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
    there = [name for name, here in zip(surface.names, mask, strict=True) if here]
    return f"present: {', '.join(there) or 'nothing'}"
