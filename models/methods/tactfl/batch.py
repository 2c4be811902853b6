"""A device's windows as tensors, with their stored context. Imports torch.

Shapes: B windows, M modalities, C channels, T samples of a window, L of a stretch of stream that ends with it
(L = T without a context).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.contract import WindowSet
from protocol.tasks.task import Task


@dataclass(frozen=True)
class StreamBatch:
    """One modality's stretches.

    Attributes:
        x_BCL: in the modality's unit; the last T points are the window.
        points_B: int64, how many points, counted back from the end, are there without a gap; at least T if
            the window has the modality, else 0.
        samples: T.
        rate_hz: of the grid.
    """

    x_BCL: Tensor
    points_B: Tensor
    samples: int
    rate_hz: float

    @property
    def first(self) -> int:
        """The window's first point."""
        return self.x_BCL.shape[2] - self.samples

    def back_s(self) -> Tensor:
        """``(B,)`` float64: when the stretch begins, in seconds from the window's start; 0 or less."""
        return (self.samples - self.points_B.clamp(min=self.samples)).to(torch.float64) / self.rate_hz


@dataclass(frozen=True)
class Streams:
    """All modalities of some windows.

    Attributes:
        names: in the task's order, that of the columns of ``present_BM``.
        each: by name.
        present_BM: bool; modalities with windows and an encoder on the device.
    """

    names: tuple[str, ...]
    each: dict[str, StreamBatch]
    present_BM: Tensor

    @classmethod
    def of(cls, task: Task, windows: WindowSet, encoders: Collection[str], *, use_context: bool) -> "Streams":
        """All windows of a set.

        Args:
            task: names, rates and lengths.
            windows: labelled or not.
            encoders: modalities that the device has an encoder of; others count as missing.
            use_context: read the windows' context, if they have one.
        """
        names = task.modality_names
        present_BM = torch.from_numpy(windows.present_BM) & torch.tensor([n in encoders for n in names])
        context = windows.context if use_context else None
        each = {}
        for m, name in enumerate(names):
            x_BCL = torch.from_numpy(windows.x[name] if context is None else context.x[name])
            samples = task.samples(name)
            points_B = torch.full((len(x_BCL),), samples)
            if context is not None:
                points_B = torch.from_numpy(context.points_BM[:, m]).clamp(min=samples)
            each[name] = StreamBatch(
                x_BCL, torch.where(present_BM[:, m], points_B, 0), samples, task.modality(name).rate_hz
            )
        return cls(names, each, present_BM)

    def at(self, index_B: Tensor) -> "Streams":
        """Some of the windows: indices, or a boolean mask."""
        each = {
            name: replace(stream, x_BCL=stream.x_BCL[index_B], points_B=stream.points_B[index_B])
            for name, stream in self.each.items()
        }
        return Streams(self.names, each, self.present_BM[index_B])

    def here(self, name: str) -> Tensor:
        """``(B,)`` bool: which windows have the modality."""
        return self.present_BM[:, self.names.index(name)]

    def windows(self, name: str) -> Tensor:
        """``x_BCT`` of the windows that have the modality."""
        stream = self.each[name]
        return stream.x_BCL[self.here(name)][:, :, stream.first :]

    def back_s(self) -> Tensor:
        """``(B,)`` float64: start of all modalities of a window together, in seconds from its start."""
        since_BM = torch.stack([self.each[name].back_s() for name in self.names], dim=1)
        since_B: Tensor = torch.where(self.present_BM, since_BM, -torch.inf).amax(dim=1)
        return torch.where(self.present_BM.any(dim=1), since_B, 0.0)

    def __len__(self) -> int:
        return len(self.present_BM)
