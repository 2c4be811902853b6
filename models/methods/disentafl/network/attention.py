"""A modality's encoder: patches, attention with MoDE on query and value. Imports torch.

Shapes: B windows, C channels, T samples, N tokens, P samples of a token, D features, H heads.
"""

import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.methods.disentafl import DisentAflConfig
from models.multimodal.encoders.dense import TextWeights
from models.multimodal.encoders.log_mel import LogMel
from protocol.tasks.task import Modality

_QUIET: Final = 7.0
_SPREAD: Final = 4.0


class Adapter(nn.Module):
    """A MoDE expert beside one projection: down, ReLU, up. It begins as nothing: ``up`` is zero."""

    def __init__(self, config: DisentAflConfig) -> None:
        super().__init__()
        self.down = nn.Linear(config.width, config.bottleneck)
        self.up = nn.Linear(config.bottleneck, config.width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, h_BND: Tensor) -> Tensor:
        """What is added to the projection."""
        added: Tensor = self.up(functional.relu(self.down(h_BND)))
        return added


class DomainLayer(nn.Module):
    """One domain's experts of one attention layer."""

    def __init__(self, config: DisentAflConfig) -> None:
        super().__init__()
        self.query = Adapter(config)
        self.value = Adapter(config)


class Domain(nn.Module):
    """One domain's experts of one modality, the blob ``domain/<m>.<d>``."""

    def __init__(self, config: DisentAflConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DomainLayer(config) for _ in range(config.layers))


class Layer(nn.Module):
    """Pre-LN self-attention and a perceptron of twice the width."""

    def __init__(self, config: DisentAflConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h_BND: Tensor, domain: DomainLayer | None) -> Tensor:
        """``h_BND`` after this layer, with the experts of one domain, or none."""
        normed_BND = self.norm1(h_BND)
        q, k, v = self.query(normed_BND), self.key(normed_BND), self.value(normed_BND)
        if domain is not None:
            q, v = q + domain.query(normed_BND), v + domain.value(normed_BND)
        h_BND = h_BND + self.out(self._attended(q, k, v))
        changed: Tensor = h_BND + self.down(functional.gelu(self.up(self.norm2(h_BND))))
        return changed

    def _attended(self, q_BND: Tensor, k_BND: Tensor, v_BND: Tensor) -> Tensor:
        tokens, width = q_BND.shape[1:]
        q, k, v = (
            t.reshape(-1, tokens, self.heads, width // self.heads).transpose(1, 2)
            for t in (q_BND, k_BND, v_BND)
        )
        weight_BHNN = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(width / self.heads), dim=3)
        return (weight_BHNN @ v).transpose(1, 2).reshape(-1, tokens, width)


class AttentionEncoder(nn.Module):
    """The domain-agnostic part of a modality's encoder, the blob ``base/<m>``.

    Args:
        modality: sound whose encoder in the task is ``mel`` becomes a spectrogram first, and counts of a text
            their weights; an image is cut into tiles, all else into stretches.
        samples: T of its windows, which are cut into at most ``config.tokens`` patches; zeros fill the last.
        config: sizes.
        bands: of the spectrogram; None: no spectrogram.
    """

    def __init__(
        self, modality: Modality, samples: int, config: DisentAflConfig, bands: int | None = None
    ) -> None:
        super().__init__()
        channels = modality.channels
        self.front: nn.Module | None = None
        if modality.kind == "sound" and bands is not None:
            spectrum = LogMel(modality.rate_hz, bands)
            self.front = nn.Sequential(spectrum, _Levels())
            channels, samples = channels * bands, spectrum.frames(samples)
        elif modality.kind == "text":
            self.front = TextWeights()
        if modality.height is not None and modality.width is not None:
            self.cut: _Tiles | _Stretches = _Tiles((modality.height, modality.width), config.tokens)
        else:
            self.cut = _Stretches(samples, config.tokens)
        self.embed = nn.Conv1d(channels, config.width, self.cut.patch, stride=self.cut.patch)
        self.positions = nn.Parameter(0.02 * torch.randn(self.cut.tokens, config.width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x_BCT: Tensor, domain: Domain | None = None) -> Tensor:
        """``h'_BD`` of normalised windows: the mean over tokens."""
        patches_BNP = self.cut.patches(x_BCT if self.front is None else self.front(x_BCT))
        # the convolution whose stride is its kernel: one product, faster so on small windows
        h_BND = functional.linear(patches_BNP, self.embed.weight.flatten(1), self.embed.bias) + self.positions
        for i, layer in enumerate(self.layers):
            h_BND = layer(h_BND, None if domain is None else domain.layers[i])
        normed_BND: Tensor = self.norm(h_BND)
        return normed_BND.mean(dim=1)


class _Levels(nn.Module):
    """Log powers from -13.8 (silence) to some 5 as numbers about zero."""

    def forward(self, spectrum: Tensor) -> Tensor:
        return (spectrum + _QUIET) / _SPREAD


class _Stretches:
    """At most so many stretches of time, of equal length."""

    def __init__(self, samples: int, most: int) -> None:
        self.patch = math.ceil(samples / most)
        self.tokens = math.ceil(samples / self.patch)

    def patches(self, x_BCT: Tensor) -> Tensor:
        """``(B, N, C * P)``."""
        channels, samples = x_BCT.shape[1:]
        padded = functional.pad(x_BCT, (0, self.tokens * self.patch - samples))
        return padded.reshape(-1, channels, self.tokens, self.patch).transpose(1, 2).flatten(2)


class _Tiles:
    """At most so many square tiles of an image, row by row."""

    def __init__(self, size: tuple[int, int], most: int) -> None:
        self.size = size
        side = max(1, math.isqrt(size[0] * size[1] // most))
        while math.ceil(size[0] / side) * math.ceil(size[1] / side) > most:
            side += 1
        self.side = side
        self.rows, self.columns = math.ceil(size[0] / side), math.ceil(size[1] / side)
        self.patch, self.tokens = side * side, self.rows * self.columns

    def patches(self, x_BCT: Tensor) -> Tensor:
        """``(B, N, C * P)``."""
        channels, side = x_BCT.shape[1], self.side
        right, below = self.columns * side - self.size[1], self.rows * side - self.size[0]
        image = functional.pad(torch.unflatten(x_BCT, 2, self.size), (0, right, 0, below))
        tiles = image.reshape(-1, channels, self.rows, side, self.columns, side).permute(0, 2, 4, 1, 3, 5)
        return tiles.reshape(-1, self.tokens, channels * self.patch)
