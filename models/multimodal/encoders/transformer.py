"""The encoder ``transformer1d``: attention over the steps of a window.

Shapes: B windows, N tokens, W features of a token, H heads.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.multimodal.encoders.steps import BatchNorm, ModalityEncoder, Step
from models.multimodal.encoders.tcn import stride_of

_LEAST_TOKENS: Final = 32
_FIRST_KERNEL: Final = 5
_NEIGHBOURS: Final = 5
_HEADS: Final = (4, 2, 1)


class Block(nn.Module):
    """Places of tokens by a convolution of each feature, attention, a perceptron; LayerNorm before each.

    A convolution tells places apart in windows of any length; it needs no table of positions.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = next(heads for heads in _HEADS if width % heads == 0)
        self.places = nn.Conv1d(width, width, _NEIGHBOURS, padding=_NEIGHBOURS // 2, groups=width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projection, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h_BNW: Tensor) -> Tensor:
        """``h_BNW`` after this block."""
        h_BNW = h_BNW + self.places(h_BNW.transpose(1, 2)).transpose(1, 2)
        h_BNW = h_BNW + self.out(self._attended(self.norm1(h_BNW)))
        changed: Tensor = h_BNW + self.down(functional.gelu(self.up(self.norm2(h_BNW))))
        return changed

    def _attended(self, h_BNW: Tensor) -> Tensor:
        # plain products: torch's fused attention has no deterministic gradient on a GPU
        each = torch.unflatten(self.projection(h_BNW), 2, (3 * self.heads, -1)).transpose(1, 2)
        q, k, v = each.chunk(3, dim=1)
        weight_BHNN = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]), dim=3)
        return torch.flatten((weight_BHNN @ v).transpose(1, 2), 2)


class Transformer1d(ModalityEncoder):
    """BatchNorm of the input, a strided convolution to tokens, blocks, the mean over tokens, a linear layer.

    Args:
        channels: C of the input.
        samples: T of the task's windows, which become 32 to 63 tokens, or T of them if it is shorter.
        width: of a token.
        depth: number of blocks.
        feature_dim: D of the output.
    """

    any_length = True

    def __init__(self, channels: int, samples: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        stride = stride_of(samples, _LEAST_TOKENS)
        kernel = max(_FIRST_KERNEL, 2 * stride + 1)
        self.norm_in = BatchNorm(channels)
        self.embed = nn.Conv1d(channels, width, kernel, stride, padding=kernel // 2)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm_out = nn.LayerNorm(width)
        self.fc = nn.Linear(width, feature_dim)
        tokens = -(-samples // stride)
        self.window_values = max(channels * samples, tokens * (3 * width + 4 * tokens))

    def steps(self) -> Sequence[Step]:
        """What a window goes through."""
        mean = partial(torch.mean, dim=1)
        return [self.norm_in, self._tokens, *self.blocks, self.norm_out, mean, self.fc]

    def _tokens(self, x_BCT: Tensor) -> Tensor:
        tokens: Tensor = self.embed(x_BCT).transpose(1, 2)
        return tokens
