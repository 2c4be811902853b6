"""Copies of one network that train at once: every tensor has a first axis for the copies.

An operation on a small network costs its call, not its arithmetic, and one on all copies costs little more.
Copies do not mix: the gradient of the sum of their losses is that of each. Sums are rounded in another order
than in one network, so the last bits of values differ from it.

Shapes: G copies, B windows of each, C channels, T samples, D features, K classes, S taps of a kernel. Between
the steps of an encoder, axis 1 has the channels of one copy after those of the other: (B, G * C, ...).
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.contract import FloatArray
from models.multimodal.encoders.convolutions2d import Cnn2d
from models.multimodal.encoders.dense import flat
from models.multimodal.encoders.steps import MOMENTUM, BatchNorm, Residual, Step
from models.multimodal.network import MultimodalNetwork
from protocol.errors import Misconfigured

_STACKED: Final = (nn.Conv1d, nn.Conv2d, BatchNorm, nn.Linear)
_BY_CHANNEL: Final = (nn.ReLU, nn.MaxPool1d, nn.MaxPool2d)
"""Without parameters; each channel by itself."""
_RESHAPES: Final = (flat, Cnn2d.as_image)
_FAST_CHANNELS: Final = 8
"""torch's grouped convolutions are fast where each group's channels are a multiple of it."""


class _Mode(Enum):
    """How a BatchNorm normalises."""

    TRAIN = "by the batch"
    EVALUATE = "by its running statistics"
    MEASURE = "by its running statistics, which it measures first"


def stacking_trouble(net: MultimodalNetwork) -> str:
    """Why copies of a network cannot be stacked, in words; empty: they can."""
    try:
        _ = net.two_layers
    except Misconfigured as error:
        return str(error)
    for name in net.names:
        for step in _every(net.stepped(name).steps()):
            if not _is_stackable(step):
                word = getattr(step, "__name__", type(step).__name__).strip("_")
                return f"modality {name!r}: its encoder has a step ({word}) that works for one device alone"
    return ""


def _every(steps: Iterable[Step]) -> Iterable[Step]:
    for step in steps:
        if isinstance(step, Residual):
            yield from _every([*step.branch, *step.shortcut])
        else:
            yield step


def _is_stackable(step: Step) -> bool:
    if isinstance(step, partial):
        axes = step.keywords.get("dim", 0)
        return step.func is torch.mean and min(axes if isinstance(axes, tuple) else (axes,)) > 1
    return isinstance(step, (*_STACKED, *_BY_CHANNEL)) or getattr(step, "__func__", step) in _RESHAPES


class _Halved(torch.autograd.Function):
    """``MaxPool1d(2)`` of an even number of samples, in a third of the time that torch's gradient takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The larger of each two samples."""
        larger = torch.max_pool1d(x, 2)
        ctx.save_for_backward(x, larger)
        return larger

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        """The slope of the larger one; of equals the first."""
        (slope,), (x, larger) = slopes, ctx.saved_tensors
        is_first = x[..., ::2] == larger
        both = torch.unflatten(torch.empty_like(x), 2, (-1, 2))
        torch.mul(slope, is_first, out=both[..., 0])
        torch.mul(slope, ~is_first, out=both[..., 1])
        return both.flatten(2)


class StackedNetwork:
    """Copies of a network, each with its values at first.

    Args:
        net: :func:`stacking_trouble` finds none in it; it is not changed.
        copies: G.
    """

    def __init__(self, net: MultimodalNetwork, copies: int) -> None:
        self._net = net
        self._copies = copies
        self._sent = {
            name: tensor.detach().expand(copies, *tensor.shape).clone().requires_grad_(tensor.requires_grad)
            for name, tensor in net.sent.items()
        }
        self._of = {id(tensor): self._sent[name] for name, tensor in net.sent.items()}

    @property
    def parameters(self) -> list[Tensor]:
        """The tensors that training changes, (G, ...) each."""
        return [tensor for tensor in self._sent.values() if tensor.requires_grad]

    def arrays(self) -> dict[str, FloatArray]:
        """The tensors that are sent, (G, ...) each, by full name; they share this network's memory."""
        return {name: tensor.detach().numpy() for name, tensor in self._sent.items()}

    def encode(self, name: str, x_BGCT: Tensor) -> Tensor:
        """``z_GBD`` of a modality's windows in its raw unit, in training."""
        return self._encoded(name, x_BGCT, _Mode.TRAIN)

    def features(self, name: str, x_BGCT: Tensor) -> Tensor:
        """``z_GBD`` as at inference, without gradient."""
        with torch.no_grad():
            return self._encoded(name, x_BGCT, _Mode.EVALUATE)

    def measure_norms(self, name: str, x_BGCT: Tensor) -> Tensor:
        """Measure a modality's BatchNorm statistics on windows in its raw unit; returns their ``z_GBD``.

        As :func:`models.multimodal.encoders.steps.measure_norms`, for windows that fit in memory together.
        """
        with torch.no_grad():
            return self._encoded(name, x_BGCT, _Mode.MEASURE)

    def classify(self, z: Mapping[str, Tensor]) -> Tensor:
        """``logits_GBK`` of one feature ``z_GBD`` for every modality of the task."""
        head = self._net.two_layers
        hidden_GBH = self._times(head.fc1, torch.cat([z[name] for name in self._net.names], dim=2))
        return self._times(head.fc2, torch.relu(hidden_GBH))

    def _encoded(self, name: str, x_BGCT: Tensor, mode: _Mode) -> Tensor:
        x = self._net.in_range(name, x_BGCT).flatten(1, 2)
        return self._apart(self._through(self._net.stepped(name).steps(), x, mode))

    def _apart(self, z: Tensor) -> Tensor:
        """(B, G * C) to (G, B, C)."""
        return torch.unflatten(z, 1, (self._copies, -1)).transpose(0, 1)

    def _through(self, steps: Iterable[Step], x: Tensor, mode: _Mode) -> Tensor:
        for step in steps:
            x = self._after(step, x, mode)
        return x

    def _after(self, step: Step, x: Tensor, mode: _Mode) -> Tensor:
        if isinstance(step, nn.Conv1d | nn.Conv2d):
            return self._convolved(step, x)
        if isinstance(step, BatchNorm):
            return self._normalised(step, x, mode)
        if isinstance(step, nn.Linear):
            return self._times(step, self._apart(x)).transpose(0, 1).flatten(1)
        if isinstance(step, Residual):
            branch = self._through(step.branch.children(), x, mode)
            return torch.relu(branch + self._through(step.shortcut.children(), x, mode))
        if isinstance(step, nn.MaxPool1d) and step.kernel_size == step.stride == 2 and not x.shape[2] % 2:  # noqa: PLR2004 - halves
            halved: Tensor = _Halved.apply(x)  # type: ignore[no-untyped-call]
            return halved
        return step(x)

    def _times(self, linear: nn.Linear, z_GBC: Tensor) -> Tensor:
        weight_GCO = self._of[id(linear.weight)].transpose(1, 2)
        if linear.bias is None:
            return torch.bmm(z_GBC, weight_GCO)
        return torch.baddbmm(self._of[id(linear.bias)].unsqueeze(1), z_GBC, weight_GCO)

    def _normalised(self, norm: BatchNorm, x: Tensor, mode: _Mode) -> Tensor:
        # flat views: the running statistics are changed in place
        weight, bias, mean, var = (
            self._of[id(tensor)].flatten()
            for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        )
        several = x.numel() != x.shape[1]
        if mode is _Mode.MEASURE and several:
            torch.batch_norm_update_stats(x, mean, var, 1.0)
        by_batch = mode is _Mode.TRAIN and several
        return torch.batch_norm(x, weight, bias, mean, var, by_batch, MOMENTUM, norm.eps, False)

    def _convolved(self, conv: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
        weight = self._of[id(conv.weight)]
        few = any(channels % _FAST_CHANNELS for channels in weight.shape[1:3])
        if few and isinstance(conv, nn.Conv1d) and conv.bias is None:
            return self._multiplied(conv, weight, x)
        bias = None if conv.bias is None else self._of[id(conv.bias)].flatten()
        how: Any = conv.stride, conv.padding, conv.dilation, conv.groups * self._copies
        convolve = functional.conv1d if isinstance(conv, nn.Conv1d) else functional.conv2d
        return convolve(x, weight.flatten(0, 1), bias, *how)

    def _multiplied(self, conv: nn.Conv1d, weight_GOCS: Tensor, x: Tensor) -> Tensor:
        """A convolution over time as one product of matrices for each copy."""
        padding, (dilation,), (stride,) = int(conv.padding[0]), conv.dilation, conv.stride
        reach = dilation * (weight_GOCS.shape[3] - 1) + 1
        seen = functional.pad(x, (padding, padding)).unfold(2, reach, stride)[..., ::dilation]
        seen_BGCTS = torch.unflatten(seen, 1, (self._copies, -1))
        batch, steps = seen_BGCTS.shape[0], seen_BGCTS.shape[3]
        columns = seen_BGCTS.permute(1, 2, 4, 0, 3).flatten(3).flatten(1, 2)
        made = torch.unflatten(torch.bmm(weight_GOCS.flatten(2), columns), 2, (batch, steps))
        return made.permute(2, 0, 1, 3).flatten(1, 2)
