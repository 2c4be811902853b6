"""Output of a source: samples of one modality, labels of one target."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.tasks.task import LABEL


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Samples of one modality: times ``t`` (n,) in seconds, ``values`` (n, V) in the modality's unit.

    V: the channels; of images, vectors and texts all values of a frame, channel first (C * T).
    """

    modality: str
    t: NDArray[np.float64]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LabelBatch:
    """Labels of one target: ``label[i]`` holds from ``t[i]`` until ``t[i + 1]``.

    A classification's are class indices, -1 or NaN for none; a regression's are numbers in its unit, NaN for
    none.
    """

    t: NDArray[np.float64]
    label: NDArray[np.int64] | NDArray[np.float64]
    target: str = LABEL


Batch = SampleBatch | LabelBatch
