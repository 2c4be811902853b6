"""What the store holds, in numbers."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

ROW_BYTES: Final = 96
"""What a row costs beyond its values: key, index, masks, page slack."""


@dataclass
class Tally:
    """Sums over what the store holds; K classes, column K is unlabelled."""

    modalities: int
    classes: int
    count_K: NDArray[np.int64] = field(init=False)
    present_MK: NDArray[np.int64] = field(init=False)
    quality_M: NDArray[np.float64] = field(init=False)
    size: int = 0

    def __post_init__(self) -> None:
        self.count_K = np.zeros(self.classes + 1, np.int64)
        self.present_MK = np.zeros((self.modalities, self.classes + 1), np.int64)
        self.quality_M = np.zeros(self.modalities)

    def copy(self) -> "Tally":
        """The same, apart from this one."""
        other = Tally(self.modalities, self.classes, self.size)
        other.count_K, other.present_MK = self.count_K.copy(), self.present_MK.copy()
        other.quality_M = self.quality_M.copy()
        return other

    def add(self, y: int, present: bytes, quality: bytes, x_bytes: int, *, sign: int = 1) -> None:
        """Count a window in, or out with ``sign`` -1."""
        k = y if y >= 0 else self.classes
        here = np.frombuffer(present, np.bool_)
        self.count_K[k] += sign
        self.present_MK[:, k] += sign * here
        self.quality_M += sign * np.where(here, np.frombuffer(quality, np.float32), 0.0)
        self.size += sign * (x_bytes + len(present) + len(quality) + ROW_BYTES)


@dataclass(frozen=True)
class Stock:
    """What the store holds, for the state message.

    ``counts``: per modality, present labelled windows per class. ``missing`` and ``quality``: per modality,
    share of windows without it, and mean quality of those with it.
    """

    labelled: int
    total: int
    bytes: int
    counts: dict[str, tuple[int, ...]]
    missing: dict[str, float]
    quality: dict[str, float]
    dropped: dict[int, int]
    lost: int
    """Windows that never reached the disk because it was full."""
