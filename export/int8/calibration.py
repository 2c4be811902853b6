"""Real windows as inputs of an ONNX model, to calibrate int8 and to measure it. NumPy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from export.int8.quantize import Feed
from export.signature import PRESENT, Surface
from models.contract import FloatArray, WindowSet
from models.data import labelled_windows, window_set
from protocol.errors import Misconfigured
from protocol.tasks.labelling import Labelled
from protocol.tasks.task import Task

FEWEST: Final = 32
"""Minimum number of windows to estimate ranges of activations."""
CALIBRATED: Final = 256
MEASURED: Final = 1024
_BATCH: Final = 32

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class CalibrationChoice:
    """A selection of windows as inputs of an ONNX model, without a copy.

    Attributes:
        windows: the whole set.
        index: of the selected windows, in order.
        present_BM: bool, of the selected ones, columns in the ONNX model's order.
        names: of the modalities, in that order.
    """

    windows: WindowSet
    index: NDArray[np.int64]
    present_BM: Bools
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.index)

    def feeds(self, without: str | None = None) -> Iterator[Feed]:
        """Batches, in order.

        Args:
            without: a modality that is masked.
        """
        present_BM = self.present_BM.astype(np.float32)
        if without is not None:
            present_BM[:, self.names.index(without)] = 0.0
        for start in range(0, len(self), _BATCH):
            at = slice(start, start + _BATCH)
            yield {
                PRESENT: present_BM[at],
                **{name: self.windows.x[name][self.index[at]] for name in self.names},
            }

    def target(self, name: str) -> FloatArray:
        """``y_B`` of a target, NaN where unlabelled."""
        return window_set.target(self.windows, name)[self.index]

    def some(self, count: int) -> "CalibrationChoice":
        """At most ``count`` windows, evenly spread, because files are often sorted by class or person."""
        if len(self) <= count:
            return self
        return self.at(np.linspace(0, len(self) - 1, count).round().astype(np.int64))

    def at(self, index: NDArray[np.int64]) -> "CalibrationChoice":
        """A selection of the selected windows."""
        return replace(self, index=self.index[index], present_BM=self.present_BM[index])


def usable(windows: WindowSet, task: Task, surface: Surface) -> CalibrationChoice:
    """The windows with an input of the model."""
    columns = [task.modality_names.index(name) for name in surface.names]
    present_BM = windows.present_BM[:, columns]
    every = CalibrationChoice(windows, np.arange(len(windows)), present_BM, surface.names)
    return every.at(np.flatnonzero(present_BM.any(axis=1)))


def ranges(chosen: CalibrationChoice) -> Iterator[Callable[[], Iterator[Feed]]]:
    """Feeds to calibrate on, the best first; of complete windows if there are enough.

    First unchanged and with each modality missing, which shifts the activations. But zeros for a missing
    modality can be far from its sensor's values (air pressure), and so wide a range costs accuracy on all
    windows. In that case: unchanged alone.
    """
    complete = np.flatnonzero(chosen.present_BM.all(axis=1))
    real = (chosen.at(complete) if len(complete) >= FEWEST else chosen).some(CALIBRATED)
    if len(chosen.names) > 1:
        yield lambda: chain(real.feeds(), *(real.feeds(name) for name in chosen.names))
    yield real.feeds


def read(task: Task, path: Path) -> WindowSet:
    """The windows of a file: a window set (npz), or a recording (npz, csv, parquet), labelled or not.

    Raises:
        Misconfigured: the file is missing, broken, or does not fit the task.
    """
    source = Labelled(file=str(path.resolve()))
    if task.labelled is not None and path.suffix != ".npz":  # the names of a table's columns
        source = task.labelled.model_copy(update={"file": source.file})
    try:
        return labelled_windows.read(task.model_copy(update={"labelled": source}), Path()).windows
    except Misconfigured as error:
        raise Misconfigured(f"windows to calibrate on: {error}") from None
