"""One route's sub-network as a device runs it: raw units in and out. Imports torch."""

from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from models.contract import FloatArray, WindowSet
from models.methods.disentafl.network.supernet import Subnet
from protocol.output_names import outputs
from protocol.tasks.task import Target, Task

_BATCH: Final = 256


class RouteModel(nn.Module):
    """What is evaluated, and what export turns into ONNX.

    Args:
        task: names, offsets and scales.
        net: kept, not copied.

    Attributes:
        modalities: that it reads, in the task's order: one argument each.
        targets: that it predicts, in the task's order.
    """

    def __init__(self, task: Task, net: Subnet) -> None:
        super().__init__()
        self.net = net
        self.modalities: tuple[str, ...] = net.modalities
        self.targets: tuple[Target, ...] = net.targets
        self._affine = [_affine(task, target) for target in net.targets]
        self.eval()

    def wire(self) -> dict[str, str]:
        """By wire name, the path of each parameter in this module."""
        return {name: f"net.{path}" for name, path in self.net.wire().items()}

    def forward(self, present_BM: Tensor, *x: Tensor) -> tuple[Tensor, ...]:
        """Predictions.

        Args:
            present_BM: float32, above one half where the modality is there; columns as :attr:`modalities`.
            *x: one ``x_BCT`` for each of them, in raw units; what a missing one holds does not matter, NaN
                included.

        Returns:
            In the order of ``protocol.output_names.outputs(self.targets)``: by target, probabilities and
            scores
            (B, K), or values (B,), or windows (B, C, T) in raw units. With nothing present: all classes
            equal, the target's or modality's offset.
        """
        seen = self.net(present_BM > 0.5, *x)  # noqa: PLR2004 - ONNX callers feed 0 or 1 as float
        made: list[Tensor] = []
        for target, (offset, scale) in zip(self.targets, self._affine, strict=True):
            y = seen.made[target.name]
            if target.kind == "classification":
                made += [torch.softmax(y, dim=1), y]
            else:
                made.append((y[:, 0] if target.kind == "regression" else y) * scale + offset)
        return tuple(made)


def _affine(task: Task, target: Target) -> tuple[float, float]:
    """Offset and scale of what a target's numbers mean."""
    of = target if target.modality is None else task.modality(target.modality)
    return of.offset, of.scale


def predictions(model: RouteModel, task: Task, windows: WindowSet) -> dict[str, FloatArray]:
    """All outputs by name, of all windows, in batches."""
    columns = [task.modality_names.index(name) for name in model.modalities]
    present_BM = torch.from_numpy(windows.present_BM[:, columns].astype(np.float32))
    x = [torch.from_numpy(windows.x[name]) for name in model.modalities]
    with torch.inference_mode():
        parts = [
            model(present_BM[at : at + _BATCH], *(x_BCT[at : at + _BATCH] for x_BCT in x))
            for at in range(0, max(1, len(windows)), _BATCH)
        ]
    made = (torch.cat(pieces).numpy() for pieces in zip(*parts, strict=True))
    return dict(zip(outputs(model.targets), made, strict=True))
