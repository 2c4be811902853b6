"""Networks that reconstruct hyper-modal vectors (appendix C-A). Imports torch.

Shapes: B entities, H numbers of a hyper-modal vector (all its parts, flat), C numbers of a context. Initial
values come from torch's global generator.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

WIDTHS: Final = (512, 256, 128)
"""The paper's layers, for parts of 512 numbers; decoding uses the reverse order."""
BLOCKS: Final = 3
_PERIOD: Final = 10_000.0


def step_embedding(step_B: Tensor, dim: int) -> Tensor:
    """Diffusion steps as cosines and sines of ``dim / 2`` rates each (as DDPM has it), ``c_BC`` with C = dim.

    Args:
        step_B: whole numbers.
        dim: even.
    """
    half = dim // 2
    rate_R = torch.exp(-math.log(_PERIOD) * torch.arange(half) / half)
    angle_BR = step_B[:, None].to(rate_R.dtype) * rate_R
    return torch.cat([torch.cos(angle_BR), torch.sin(angle_BR)], dim=1)


def _layers(sizes: Sequence[int]) -> list[nn.Module]:
    return [layer for one, two in pairwise(sizes) for layer in (nn.Linear(one, two), nn.ReLU())]


class Autoencoder(nn.Module):
    """AE: three encoding layers, three decoding layers, ReLU between.

    Args:
        numbers: H.
        widths: of the encoding layers.
        context: C; numbers that are given beside the vector, 0 for none.
    """

    def __init__(self, numbers: int, widths: Sequence[int] = WIDTHS, context: int = 0) -> None:
        super().__init__()
        back = [*reversed(widths), numbers]
        self.encoder = nn.Sequential(*_layers([numbers + context, *widths]))
        self.decoder = nn.Sequential(*_layers(back)[:-1])

    def forward(self, x_BH: Tensor, context_BC: Tensor | None = None) -> Tensor:
        """The output for ``x_BH``, in the same shape."""
        given = x_BH if context_BC is None else torch.cat([x_BH, context_BC], dim=1)
        made_BH: Tensor = self.decoder(self.encoder(given))
        return made_BH


class Cascade(nn.Module):
    """CRA: autoencoders in a row, each adding what the vector still lacks after those before it.

    If nothing of a vector is hidden, the target is the vector itself: trained so, the sum r_1 + ... + r_n
    falls to zero, and with it the values of absent parts
    (:func:`models.knowledge_graph.networks.imputation.hidden`).

    Args:
        numbers: H.
        widths: of each autoencoder.
        blocks: how many.
        step_dim: size of a diffusion step's embedding that each autoencoder is given; 0: there are no steps.
            Even.

    Raises:
        ValueError: ``step_dim`` is odd.
    """

    def __init__(
        self, numbers: int, widths: Sequence[int] = WIDTHS, blocks: int = BLOCKS, step_dim: int = 0
    ) -> None:
        super().__init__()
        if step_dim % 2:
            raise ValueError(f"step_dim is an even number (as many sines as cosines), not {step_dim}")
        self._step_dim = step_dim
        self.blocks = nn.ModuleList(Autoencoder(numbers, widths, step_dim) for _ in range(blocks))

    def forward(self, x_BH: Tensor, step_B: Tensor | None = None) -> Tensor:
        """``x + r_1 + ... + r_n``, where r_k is the output of block k for the sum before it.

        Args:
            x_BH: vectors, zeros where something is absent.
            step_B: the diffusion step of each, if it has steps.
        """
        context_BC = None if step_B is None else step_embedding(step_B, self._step_dim)
        for block in self.blocks:
            x_BH = x_BH + block(x_BH, context_BC)
        return x_BH


class Mmin(nn.Module):
    """MMIN: one cascade imagines the whole vector, another maps that back to the known parts.

    Args:
        numbers: H.
        widths: of each autoencoder.
        blocks: of each cascade.
    """

    def __init__(self, numbers: int, widths: Sequence[int] = WIDTHS, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.forth = Cascade(numbers, widths, blocks)
        self.back = Cascade(numbers, widths, blocks)

    def forward(self, x_BH: Tensor) -> tuple[Tensor, Tensor]:
        """The first cascade's output for ``x_BH``, and the second's output for that."""
        forth_BH: Tensor = self.forth(x_BH)
        return forth_BH, self.back(forth_BH)
