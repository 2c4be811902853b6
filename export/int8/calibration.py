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
from protocol.tasks.task import Labelled, Task

FEWEST: Final = 32
"""Of fewer windows the ranges of inner values say little."""
CALIBRATED: Final = 256
MEASURED: Final = 1024
_BATCH: Final = 32

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class CalibrationChoice:
    """Windows as an ONNX model reads them; the set that they are chosen from is not copied.

    Attributes:
        windows: the whole set.
        index: places in it, in order.
        present_BM: bool, of the chosen ones, columns in the ONNX model's order.
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
            without: a modality that is made missing.
        """
        here = self.present_BM.astype(np.float32)
        if without is not None:
            here[:, self.names.index(without)] = 0.0
        for start in range(0, len(self), _BATCH):
            at = slice(start, start + _BATCH)
            yield {PRESENT: here[at], **{name: self.windows.x[name][self.index[at]] for name in self.names}}

    def target(self, name: str) -> FloatArray:
        """``y_B`` of a target, NaN where unlabelled."""
        return window_set.target(self.windows, name)[self.index]

    def some(self, count: int) -> "CalibrationChoice":
        """At most so many, spread evenly: a file often has one class or person after the other."""
        if len(self) <= count:
            return self
        return self.at(np.linspace(0, len(self) - 1, count).round().astype(np.int64))

    def at(self, index: NDArray[np.int64]) -> "CalibrationChoice":
        """Those at these places of the chosen ones."""
        return replace(self, index=self.index[index], present_BM=self.present_BM[index])


def usable(windows: WindowSet, task: Task, surface: Surface) -> CalibrationChoice:
    """The windows that show an ONNX model something."""
    columns = [task.modality_names.index(name) for name in surface.names]
    present_BM = windows.present_BM[:, columns]
    every = CalibrationChoice(windows, np.arange(len(windows)), present_BM, surface.names)
    return every.at(np.flatnonzero(present_BM.any(axis=1)))


def ranges(chosen: CalibrationChoice) -> Iterator[Callable[[], Iterator[Feed]]]:
    """Feeds to calibrate on, the best first, of windows that are complete where there are enough.

    First as they are and with each modality missing: what is computed then may lie elsewhere. But an ONNX
    model reads a missing modality as zeros, which can be far from all that its sensor measures (air
    pressure), and so wide a range costs every window. Where that spoils it: as they are alone.
    """
    complete = np.flatnonzero(chosen.present_BM.all(axis=1))
    real = (chosen.at(complete) if len(complete) >= FEWEST else chosen).some(CALIBRATED)
    if len(chosen.names) > 1:
        yield lambda: chain(real.feeds(), *(real.feeds(name) for name in chosen.names))
    yield real.feeds


def read(task: Task, path: Path) -> WindowSet:
    """The windows of a file: a window set (npz), or a recording (npz, csv, parquet), labelled or not.

    Raises:
        Misconfigured: it is not there, is broken, or does not fit the task.
    """
    there = Labelled(file=str(path.resolve()))
    if task.labelled is not None and path.suffix != ".npz":  # the names of a table's columns
        there = task.labelled.model_copy(update={"file": there.file})
    try:
        return labelled_windows.read(task.model_copy(update={"labelled": there}), Path()).windows
    except Misconfigured as error:
        raise Misconfigured(f"windows to calibrate on: {error}") from None
