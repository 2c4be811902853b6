"""Images and sounds for MERGE-FA's windows, and its judges. NumPy only."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.disentafl.data.judges import RandomFeatureJudge
from lichen_lab.benchmarks.studies.disentafl.settings import WindowJudge
from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import av_mnist
from lichen_lab.simulation.data.sets.fsdd import Sounds
from models.contract import FloatArray

POOL: Final = 2
HALF: Final = av_mnist.ROWS // POOL
JUDGED_ON: Final = 10_000
"""Training images of the judge of written digits."""
_TESTS: Final = 5
_OURS: Final = 25
"""FSDD's recordings from this one on are for the judge."""


@dataclass(frozen=True)
class Pool:
    """Samples from which windows are drawn.

    Attributes:
        x_NCT: float32.
        y_N: class of each.
    """

    x_NCT: FloatArray
    y_N: NDArray[np.int64]

    def drawn(self, y_B: NDArray[np.int64], rng: np.random.Generator) -> FloatArray:
        """One sample of each class in the list; none twice while the class has others."""
        place_B = np.zeros(len(y_B), np.int64)
        for value in np.unique(y_B):
            asked_B = y_B == value
            place_B[asked_B] = np.resize(rng.permutation(np.flatnonzero(self.y_N == value)), asked_B.sum())
        return self.x_NCT[place_B]


def half(images: tuple[NDArray[np.uint8], NDArray[np.int64]], part: Part) -> Pool:
    """The first half of some images (train) or the second, 0 to 1."""
    pixels_NHW, y_N = images
    cut = len(y_N) // 2
    chosen = slice(None, cut) if part == "train" else slice(cut, None)
    return Pool(unit(pixels_NHW[chosen]), y_N[chosen])


def spoken(sounds: Sounds, part: Part | None) -> Pool:
    """Spectra of spoken digits, dB above silence; None: those of the judge."""
    low, high = {"test": (0, _TESTS), "train": (_TESTS, _OURS), None: (_OURS, 1 << 30)}[part]
    chosen = (sounds.index >= low) & (sounds.index < high)
    return Pool(pooled(sounds.mel[chosen]), sounds.digit[chosen])


def judges(seed: int, sounds: Sounds) -> dict[str, WindowJudge]:
    """By generation, the classifier of its windows.

    Raises:
        Misconfigured: MNIST is not here.
    """
    pixels_NHW, digit_N = av_mnist.images("train")
    chosen = np.sort(np.random.default_rng([seed, 4]).permutation(len(digit_N))[:JUDGED_ON])
    seen = {
        "gen_image": Pool(as_stream(pooled(unit(pixels_NHW[chosen]))), digit_N[chosen]),
        "gen_audio": spoken(sounds, None),
    }
    return {name: RandomFeatureJudge.fitted(pool.x_NCT, pool.y_N, 10, seed) for name, pool in seen.items()}


def unit(pixels_NHW: NDArray[np.uint8]) -> FloatArray:
    """Brightness, 0 to 1."""
    return np.divide(pixels_NHW, np.float32(255), dtype=np.float32)


def pooled(x_NHW: FloatArray) -> FloatArray:
    """Means of squares of 2 x 2."""
    count, height, width = x_NHW.shape
    squares = x_NHW.reshape(count, height // POOL, POOL, width // POOL, POOL)
    means_NHW: FloatArray = squares.mean(axis=(2, 4), dtype=np.float32)
    return means_NHW


def side_by_side(digit_NHW: FloatArray, item_NHW: FloatArray) -> FloatArray:
    """28 x 28: the digit (14 x 14) at the top left, the item (14 x 14) at the bottom right."""
    whole = np.zeros((len(digit_NHW), av_mnist.ROWS, av_mnist.ROWS), np.float32)
    whole[:, :HALF, :HALF] = digit_NHW
    whole[:, HALF:, HALF:] = item_NHW
    return whole


def as_stream(x_NHW: FloatArray) -> FloatArray:
    """Row by row: channel w of sample h."""
    return np.ascontiguousarray(x_NHW.transpose(0, 2, 1))
