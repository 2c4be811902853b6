"""One part of a data set: labelled windows with their persons."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.contract import FloatArray, WindowSet
from models.data.window_set import select as select_windows

Part = Literal["train", "test"]


def complete(
    x: dict[str, FloatArray], y_B: NDArray[np.int64], targets: dict[str, FloatArray] | None = None
) -> WindowSet:
    """Windows that have all modalities, of quality 1."""
    shape = (len(y_B), len(x))
    ones_BM = np.ones(shape, np.float32)
    return WindowSet(x, ones_BM.astype(np.bool_), ones_BM, y_B, targets=targets or {})


@dataclass(frozen=True)
class DataSplit:
    """Windows and the person each was recorded from.

    Attributes:
        windows: B labelled windows, modalities in the data set's order.
        person_B: int64, the data set's own number of the person (speaker, subject) of each window.
    """

    windows: WindowSet
    person_B: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.person_B)

    def select(self, index: ArrayLike) -> "DataSplit":
        """The windows at these places (indices or a boolean mask), copied."""
        at = np.asarray(index)
        return DataSplit(select_windows(self.windows, at), self.person_B[at])

    def of_person(self, *people: int) -> "DataSplit":
        """The windows of these people."""
        return self.select(np.isin(self.person_B, people))
