"""Encoders of one modality: a window ``x_BCT`` (batch, channels, time) to a feature ``z_BD``.

Both hold BatchNorm: with the plain SGD that federated methods use (learning rate .08) they stay at chance
without it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder

_KERNEL: Final = 5
_MOMENTUM: Final = 0.3
_MIN_SAMPLES: Final = 8
"""Pooling stops before the time axis is shorter than this."""
_PART: Final = 256
"""Windows that go through a step of an encoder at a time when no gradient is needed."""
_TOGETHER: Final = 1024
"""Limit of the windows whose values are in memory between two steps."""

Step = Callable[[Tensor], Tensor]


def widths_of(width: int, depth: int) -> tuple[int, ...]:
    """Channels of each convolution: two layers of ``width``, three of twice that, then four times.

    >>> widths_of(32, 5)
    (32, 32, 64, 64, 64)
    """
    return tuple(width * (1 if i < 2 else 2 if i < 5 else 4) for i in range(depth))  # noqa: PLR2004 - the rule above


def poolings_of(samples: int, depth: int) -> int:
    """How many of the first layers halve the time axis: as many as leave eight samples or more.

    16 samples are halved once, 128 four times, 1024 seven times if there are as many layers.
    """
    return max(0, min(depth, (samples // _MIN_SAMPLES).bit_length() - 1))


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm for federated rounds of few batches.

    Its running statistics follow the newest batches faster than torch's (momentum .3, not .1): a device takes
    some four steps a round, and with .1 they lag so far behind the weights that after eight rounds of five
    devices on UCI-HAR the evaluated accuracy was .38 and .56 (two seeds) instead of .55 and .74.

    A single value per channel (a batch may be one window) is normalised by the running statistics; torch's
    raises. Steps are not counted: a fixed momentum does not need it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=_MOMENTUM)
        self.num_batches_tracked = None

    def forward(self, x: Tensor) -> Tensor:
        """``x`` normalised per channel (axis 1)."""
        by_batch = self.training and x.numel() != x.shape[1]
        # torch.nn's way to this call takes as long as the call does on a small device's windows
        mean, var = self.running_mean, self.running_var
        return torch.batch_norm(x, self.weight, self.bias, mean, var, by_batch, _MOMENTUM, self.eps, False)

    def measure(self, x: Tensor) -> None:
        """Set the running statistics to those of ``x``; of a single value per channel there are none."""
        if x.numel() > x.shape[1]:
            torch.batch_norm_update_stats(x, self.running_mean, self.running_var, 1.0)


class Cnn1d(nn.Module):
    """Convolutions (kernel 5, BatchNorm, ReLU, halving), the mean over time, a linear layer.

    Args:
        channels: C of the input.
        samples: T of the input; fixes how often the time axis is halved.
        width: channels of the first convolution; see :func:`widths_of`.
        depth: number of convolutions.
        feature_dim: D of the output.
    """

    def __init__(self, channels: int, samples: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        halved = poolings_of(samples, depth)
        before = channels
        for i, after in enumerate(widths_of(width, depth)):
            # No bias: the BatchNorm that follows has one.
            layers += [nn.Conv1d(before, after, _KERNEL, padding=_KERNEL // 2, bias=False)]
            layers += [BatchNorm(after), nn.ReLU()]
            if i < halved:
                layers.append(nn.MaxPool1d(2))
            before = after
        self.convolutions = nn.Sequential(*layers)
        self.fc = nn.Linear(before, feature_dim)

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        return [*self.convolutions, partial(torch.mean, dim=2), self.fc]

    def forward(self, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD``."""
        return _through(self.steps(), x_BCT)


class Lstm(nn.Module):
    """BatchNorm of the input, stacked LSTM layers, the mean over time, BatchNorm, a linear layer.

    The mean over time, rather than the last hidden state, lets plain SGD reach every time step: on UCI-HAR's
    gyroscope alone ten epochs over 2,000 windows gave 0.48 accuracy against 0.38. BatchNorm after it, rather
    than on every time step, gave 0.48 against 0.43, for less work.

    Args:
        channels: C of the input.
        width: hidden units of every layer.
        depth: number of stacked layers.
        feature_dim: D of the output.
    """

    def __init__(self, channels: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        self.norm_in = BatchNorm(channels)
        self.lstm = nn.LSTM(channels, width, num_layers=depth, batch_first=True)
        self.norm_out = BatchNorm(width)
        self.fc = nn.Linear(width, feature_dim)

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        return [self.norm_in, self._mean_hidden, self.norm_out, self.fc]

    def _mean_hidden(self, x_BCT: Tensor) -> Tensor:
        hidden_BTH: Tensor = self.lstm(x_BCT.transpose(1, 2))[0]
        return hidden_BTH.mean(dim=1)

    def forward(self, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD``."""
        return _through(self.steps(), x_BCT)


def _through(steps: Sequence[Step], x: Tensor) -> Tensor:
    for step in steps:
        x = step(x)
    return x


def measure_norms(encoder: Cnn1d | Lstm, x_BCT: Tensor) -> Tensor:
    """Measure the running statistics of each BatchNorm with the current parameters; returns ``z_BD``.

    A round has few steps, so statistics with a momentum lag behind, and features at inference would differ
    from those in training. Windows go through one step of the encoder after the other: what reaches a
    BatchNorm is what reaches it at inference, and the features cost no second pass.

    Args:
        encoder: in evaluation mode afterwards.
        x_BCT: one window or more. Statistics of more than 1,024 are measured on as many or fewer, evenly
            spread.
    """
    if encoder.training:
        encoder.eval()
    with torch.no_grad():
        z = x_BCT[:: math.ceil(len(x_BCT) / _TOGETHER)]
        for step in encoder.steps():
            if isinstance(step, BatchNorm):
                step.measure(z)
            z = _in_parts(step, z)
    return z if len(z) == len(x_BCT) else in_parts(encoder, x_BCT)


def in_parts(step: Step, x: Tensor) -> Tensor:
    """A step's result for all windows, without gradient; memory is bounded."""
    with torch.no_grad():
        return _in_parts(step, x)


def _in_parts(step: Step, x: Tensor) -> Tensor:
    return step(x) if len(x) <= _PART else torch.cat([step(part) for part in torch.split(x, _PART)])


def make_encoder(encoder: Encoder, channels: int, samples: int, feature_dim: int) -> Cnn1d | Lstm:
    """The encoder of a task's modality, with torch's own initial values (set the seed before)."""
    if encoder.kind == "cnn1d":
        return Cnn1d(channels, samples, encoder.width, encoder.depth, feature_dim)
    if encoder.kind == "lstm":
        return Lstm(channels, encoder.width, encoder.depth, feature_dim)
    raise Misconfigured(f"encoder {encoder.kind!r}: this release has no such network")
