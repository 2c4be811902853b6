"""A device's windows as tensors: what a route reads, and what each of its targets should be. Imports torch.

Shapes: B windows, M modalities of the route, C channels, T samples, S numbers of one value or window.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.contract import WindowSet
from models.data.window_set import target as truth_of
from models.methods.disentafl.round_plan import labelled
from protocol.tasks.task import Target, Task


class Reads(Protocol):
    """A network of some modalities and targets, in the task's order."""

    @property
    def modalities(self) -> tuple[str, ...]:
        """That it reads."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """That it predicts."""


@dataclass(frozen=True)
class Truth:
    """What a target should be: class indices (B,) or normalised numbers (B, S), and which windows have it."""

    y: Tensor
    labelled_B: Tensor


@dataclass(frozen=True)
class SupernetBatch:
    """Windows of a route's modalities and targets.

    Attributes:
        x: one ``x_BCT`` for each modality of the route, in its raw unit.
        present_BM: bool, columns likewise.
        truth: by target of the route.
    """

    x: tuple[Tensor, ...]
    present_BM: Tensor
    truth: dict[str, Truth]

    @classmethod
    def of(cls, task: Task, net: Reads, windows: WindowSet) -> "SupernetBatch":
        """All windows of a set."""
        columns = [task.modality_names.index(name) for name in net.modalities]
        present_BM: NDArray[np.bool_] = windows.present_BM[:, columns]
        usable_B: NDArray[np.bool_] = np.any(present_BM, axis=1)
        return cls(
            tuple(torch.from_numpy(windows.x[name]) for name in net.modalities),
            torch.from_numpy(present_BM),
            {target.name: _truth(task, target, windows, usable_B) for target in net.targets},
        )

    def at(self, index_B: Tensor) -> "SupernetBatch":
        """Some of the windows."""
        return SupernetBatch(
            tuple(x_BCT[index_B] for x_BCT in self.x),
            self.present_BM[index_B],
            {name: Truth(t.y[index_B], t.labelled_B[index_B]) for name, t in self.truth.items()},
        )

    def __len__(self) -> int:
        return len(self.present_BM)


def _truth(task: Task, target: Target, windows: WindowSet, usable_B: NDArray[np.bool_]) -> Truth:
    known_B = labelled(task, target, windows) & usable_B
    if target.modality is not None:
        modality = task.modality(target.modality)
        y = ((windows.x[target.modality] - modality.offset) / modality.scale).reshape(len(windows), -1)
    elif target.labels:
        y = np.where(known_B, truth_of(windows, target.name), 0).astype(np.int64)
        return Truth(torch.from_numpy(y), torch.from_numpy(known_B))
    else:
        y = ((truth_of(windows, target.name) - target.offset) / target.scale)[:, None]
    clean = np.where(known_B[:, None], y, 0).astype(np.float32)
    return Truth(torch.from_numpy(clean), torch.from_numpy(known_B))
