"""What all encoders are: steps that a window goes through, some of which measure the windows that reach them.

Memory is bounded by the values of a window between two steps (``ModalityEncoder.window_values``): without a
gradient, windows go through an encoder in parts.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import torch
from torch import Tensor, nn

MOMENTUM: Final = 0.3
_PART: Final = 256
"""Windows that go through an encoder at a time when no gradient is needed."""
_PART_VALUES: Final = 1 << 22
"""Limit of their values between two steps (16 MB)."""
_TOGETHER: Final = 1024
"""Limit of the windows whose values are in memory between two steps."""
_TOGETHER_VALUES: Final = 1 << 24
"""Limit of those values (64 MB)."""
_UNSTATED: Final = 64
"""Values between two steps for each value of a window, where an encoder does not say."""

Step = Callable[[Tensor], Tensor]


class ModalityEncoder(nn.Module):
    """Base of all encoders: ``x_BCT`` in the task's scale to ``z_BD``, by steps.

    Attributes:
        any_length: T may differ from that of the task's windows.
        window_values: values that one window has between two steps, at most.
    """

    any_length: bool = False
    window_values: int = 0

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        raise NotImplementedError

    def forward(self, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD``."""
        return through(self.steps(), x_BCT)


class Stepped(Protocol):
    """An encoder, of whatever base."""

    training: bool

    def steps(self) -> Sequence[Step]:
        """As of :class:`ModalityEncoder`."""

    def __call__(self, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD``."""

    def eval(self) -> nn.Module:
        """Evaluation mode."""


class Measures(Protocol):
    """A step with BatchNorm inside: a class with this method."""

    def measured(self, x: Tensor) -> Tensor:
        """The step's result, with the statistics of each BatchNorm inside measured on what reaches it."""


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm for federated rounds of few batches, of ``x`` with any number of axes after the channels.

    Its running statistics follow the newest batches faster than torch's (momentum .3, not .1): a device takes
    some four steps a round, and with .1 they lag so far behind the weights that after eight rounds of five
    devices on UCI-HAR the evaluated accuracy was .38 and .56 (two seeds) instead of .55 and .74.

    A single value per channel (a batch may be one window) is normalised by the running statistics; torch's
    raises. Steps are not counted: a fixed momentum does not need it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=MOMENTUM)
        self.num_batches_tracked = None

    def forward(self, x: Tensor) -> Tensor:
        """``x`` normalised per channel (axis 1)."""
        by_batch = self.training and x.numel() != x.shape[1]
        # torch.nn's way to this call takes as long as the call does on a small device's windows
        mean, var = self.running_mean, self.running_var
        return torch.batch_norm(x, self.weight, self.bias, mean, var, by_batch, MOMENTUM, self.eps, False)

    def measure(self, x: Tensor) -> None:
        """Set the running statistics to those of ``x``; of a single value per channel there are none."""
        if x.numel() > x.shape[1]:
            torch.batch_norm_update_stats(x, self.running_mean, self.running_var, 1.0)


class Residual(nn.Module):
    """Steps, and a connection around them: one step of an encoder.

    Args:
        branch: modules, each BatchNorm one of its own.
        shortcut: the same of the connection; none: ``x`` itself.
    """

    def __init__(self, branch: Sequence[nn.Module], shortcut: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """``relu(branch(x) + shortcut(x))``."""
        return torch.relu(through(list(self.branch), x) + through(list(self.shortcut), x))

    def measured(self, x: Tensor) -> Tensor:
        """The same, with the statistics of each BatchNorm inside measured on ``x``."""
        return torch.relu(_measured(list(self.branch), x) + _measured(list(self.shortcut), x))


def through(steps: Sequence[Step], x: Tensor) -> Tensor:
    """``x`` after all steps."""
    for step in steps:
        x = step(x)
    return x


def measure_norms(encoder: Stepped, x_BCT: Tensor) -> Tensor:
    """Measure the running statistics of each BatchNorm with the current parameters; returns ``z_BD``.

    A round has few steps, so statistics with a momentum lag behind, and features at inference would differ
    from those in training. Windows go through one step of the encoder after the other: what reaches a
    BatchNorm is what reaches it at inference, and the features cost no second pass.

    Args:
        encoder: in evaluation mode afterwards.
        x_BCT: one window or more. Statistics of more than 1,024, or of fewer large ones, are measured on as
            many or fewer, evenly spread.
    """
    if encoder.training:
        encoder.eval()
    each = x_BCT[:1].numel()
    apart = max(1, math.ceil(len(x_BCT) / measured_together(encoder, each)))
    with torch.no_grad():
        z = _measured(encoder.steps(), x_BCT[::apart])
    return z if len(z) == len(x_BCT) else in_parts(encoder, x_BCT, windows_at_once(encoder, each))


def _measured(steps: Sequence[Step], z: Tensor) -> Tensor:
    for step in steps:
        if hasattr(type(step), "measured"):  # isinstance with a protocol takes longer than many a step
            z = cast("Measures", step).measured(z)
            continue
        if isinstance(step, BatchNorm):
            step.measure(z)
        z = _in_parts(step, z, _PART)
    return z


def measured_together(encoder: Stepped, values: int) -> int:
    """How many windows of so many values may be in memory between two steps of an encoder."""
    return max(1, min(_TOGETHER, _TOGETHER_VALUES // window_values(encoder, values)))


def window_values(encoder: Stepped, values: int) -> int:
    """Values that a window of so many values has between two steps of an encoder, at most; at least 1."""
    stated = int(getattr(encoder, "window_values", 0))
    return max(1, stated or _UNSTATED * values)


def windows_at_once(encoder: Stepped, values: int) -> int:
    """How many windows of so many values may go through an encoder at a time, without a gradient."""
    return max(1, min(_PART, _PART_VALUES // window_values(encoder, values)))


def in_parts(step: Step, x: Tensor, count: int = _PART) -> Tensor:
    """A step's result for all windows, ``count`` at a time, without gradient; memory is bounded."""
    with torch.no_grad():
        return _in_parts(step, x, count)


def _in_parts(step: Step, x: Tensor, count: int) -> Tensor:
    return step(x) if len(x) <= count else torch.cat([step(part) for part in torch.split(x, count)])
