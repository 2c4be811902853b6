"""Networks that predict a hyper-modal vector from a noised one and its step (Fig. 6). Imports torch.

The paper names four: CRA (:class:`~models.knowledge_graph.networks.autoencoders.Cascade`), AE, MLP and MHA.
It gives sizes for the first two alone; those of the others are ours.

Shapes: B entities, P parts, D numbers of a part, H = P * D, C numbers of a step's embedding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from models.knowledge_graph.networks.autoencoders import Autoencoder, Cascade, step_embedding

HEADS: Final = 4
"""Most heads of the attention."""


class OneAutoencoder(nn.Module):
    """AE: one autoencoder, which is given the step's embedding beside the vector.

    Args:
        numbers: H.
        widths: of the encoding layers.
        step_dim: C; even.
    """

    def __init__(self, numbers: int, widths: Sequence[int], step_dim: int) -> None:
        super().__init__()
        self._step_dim = step_dim
        self.net = Autoencoder(numbers, widths, step_dim)

    def forward(self, x_BH: Tensor, step_B: Tensor) -> Tensor:
        """The predicted vector, in the shape of ``x_BH``."""
        made_BH: Tensor = self.net(x_BH, step_embedding(step_B, self._step_dim))
        return made_BH


class Perceptron(nn.Module):
    """MLP: two hidden layers as wide as the vector, so nothing is narrowed; ReLU between.

    Args:
        numbers: H.
        step_dim: C; even.
    """

    def __init__(self, numbers: int, step_dim: int) -> None:
        super().__init__()
        self._step_dim = step_dim
        self.layers = nn.Sequential(
            nn.Linear(numbers + step_dim, numbers),
            nn.ReLU(),
            nn.Linear(numbers, numbers),
            nn.ReLU(),
            nn.Linear(numbers, numbers),
        )

    def forward(self, x_BH: Tensor, step_B: Tensor) -> Tensor:
        """The predicted vector, in the shape of ``x_BH``."""
        made_BH: Tensor = self.layers(torch.cat([x_BH, step_embedding(step_B, self._step_dim)], dim=1))
        return made_BH


class PartAttention(nn.Module):
    """MHA: self-attention over the parts, then a layer for each part; both are added to their input.

    Args:
        numbers: H.
        dim: D.
        step_dim: C; even.
    """

    def __init__(self, numbers: int, dim: int, step_dim: int) -> None:
        super().__init__()
        self._dim, self._step_dim = dim, step_dim
        self.part_PD = nn.Parameter(torch.zeros(numbers // dim, dim))
        self.step = nn.Linear(step_dim, dim)
        heads = next(count for count in range(HEADS, 0, -1) if dim % count == 0)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        nn.init.normal_(self.part_PD, std=dim**-0.5)

    def forward(self, x_BH: Tensor, step_B: Tensor) -> Tensor:
        """The predicted vector, in the shape of ``x_BH``."""
        step_B1D = self.step(step_embedding(step_B, self._step_dim))[:, None]
        x_BPD = x_BH.view(len(x_BH), -1, self._dim)
        given_BPD = x_BPD + self.part_PD + step_B1D
        x_BPD = x_BPD + self.attention(given_BPD, given_BPD, given_BPD, need_weights=False)[0]
        made_BH: Tensor = (x_BPD + self.layers(x_BPD)).flatten(1)
        return made_BH


DENOISERS: Final[Mapping[str, Callable[[int, Sequence[int], int, int], nn.Module]]] = {
    "ae": lambda numbers, widths, _blocks, step_dim: OneAutoencoder(numbers, widths, step_dim),
    "cra": Cascade,
    "mha": lambda numbers, widths, _blocks, step_dim: PartAttention(numbers, widths[0], step_dim),
    "mlp": lambda numbers, _widths, _blocks, step_dim: Perceptron(numbers, step_dim),
}
"""By name: makes one of H, the layers' widths (the first is D), a cascade's blocks, and C. Initial values
come from torch's global generator."""
