"""Imputation of modalities that an entity lacks: HidE and the paper's baselines. Imports torch.

All are trained on present parts alone (equation 7), and change none of these (equation 6).

Shapes: B entities, L of them that lack a part, P parts, D numbers of a part, H = P * D.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from models.knowledge_graph.networks.autoencoders import BLOCKS, WIDTHS, Autoencoder, Cascade, Mmin
from models.knowledge_graph.networks.denoisers import DENOISERS
from models.knowledge_graph.networks.diffusion import HIGH, LOW, SCALE, Schedule
from models.knowledge_graph.networks.modality_vectors import imputed, masked_distance, shown
from models.training.local import kept


@dataclass(frozen=True)
class ImputerSettings:
    """Sizes of the networks; the paper's where it gives them.

    Attributes:
        widths: of each autoencoder's layers; the first is D.
        blocks: autoencoders of a cascade.
        denoiser: a key of :data:`models.knowledge_graph.networks.denoisers.DENOISERS`; the paper's is "cra".
        steps: T of the diffusion; not in the paper.
        gradient_steps: how many last steps of the way back gradients flow through; None: all, as in the
            paper. One costs about half as much time as all of five.
        step_dim: numbers of a step's embedding; even.
        low: the first beta, before scaling.
        high: the last one.
        scale: s, of all betas.
        unit: the size of a usual number of an embedding. Networks compute in it; noise and losses do not.
            With numbers of .05 and a unit of 1, biases dominate them.
    """

    widths: tuple[int, ...] = WIDTHS
    blocks: int = BLOCKS
    denoiser: str = "cra"
    steps: int = 5
    gradient_steps: int | None = None
    step_dim: int = 16
    low: float = LOW
    high: float = HIGH
    scale: float = SCALE
    unit: float = 1.0


class Imputer(nn.Module):
    """Base of all imputers: input vectors have zeros where a part is absent.

    Args:
        unit: see :class:`ImputerSettings`.
    """

    def __init__(self, unit: float) -> None:
        super().__init__()
        self._unit = unit

    def forward(self, h_BPD: Tensor, present_BP: Tensor, generator: torch.Generator) -> Tensor:
        """Equation (6), ``h_BPD`` with every part; entities that lack nothing cost nothing.

        Gradients flow into the network and into its input.

        Args:
            h_BPD: hyper-modal vectors; absent parts are not read.
            present_BP: bool; the structure always is.
            generator: random source (HidE's noise; others draw nothing).
        """
        lacking_L = (~present_BP.all(dim=1)).nonzero().squeeze(1)
        if not len(lacking_L):
            return h_BPD
        x_LH = shown(h_BPD[lacking_L], present_BP[lacking_L]).flatten(1) / self._unit
        made_LPD = self._unit * self._made(x_LH, generator).view(-1, *h_BPD.shape[1:])
        return imputed(h_BPD, present_BP, torch.zeros_like(h_BPD).index_copy(0, lacking_L, made_LPD))

    def loss(
        self, h_BPD: Tensor, present_BP: Tensor, generator: torch.Generator, seen_BP: Tensor | None = None
    ) -> Tensor:
        """Equation (7) of a batch, for this network.

        Args:
            h_BPD: as above. Gradients flow into it as the network's input, never as its target.
            present_BP: parts that the network should reconstruct.
            generator: random source.
            seen_BP: the parts of these in its input (:func:`hidden`); None: all, as in the paper. Then every
                target is in the input, and nothing teaches the network to derive a part from others.
        """
        x_BPD = shown(h_BPD, present_BP if seen_BP is None else present_BP & seen_BP)
        made = [self._unit * x.view_as(h_BPD) for x in self._tried(x_BPD.flatten(1) / self._unit, generator)]
        return torch.stack([masked_distance(x_BPD, h_BPD, present_BP) for x_BPD in made]).sum()

    def _made(self, x_BH: Tensor, generator: torch.Generator) -> Tensor:
        """The network's output for vectors, both in units."""
        raise NotImplementedError

    def _tried(self, x_BH: Tensor, generator: torch.Generator) -> list[Tensor]:
        """The outputs that the loss compares with the vectors."""
        return [self._made(x_BH, generator)]


class Reconstruction(Imputer):
    """AE and CRA: the network reconstructs the vector in one step.

    Args:
        net: from ``x_BH`` to the same.
        unit: as above.
    """

    def __init__(self, net: nn.Module, unit: float) -> None:
        super().__init__(unit)
        self.net = net

    def _made(self, x_BH: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002 - draws nothing
        made_BH: Tensor = self.net(x_BH)
        return made_BH


class Imagination(Imputer):
    """MMIN: the imagined vector is the result, and the loss includes the way back to the input.

    Args:
        net: the two cascades.
        unit: as above.
    """

    def __init__(self, net: Mmin, unit: float) -> None:
        super().__init__(unit)
        self.net = net

    def _made(self, x_BH: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002 - draws nothing
        made_BH: Tensor = self.net.forth(x_BH)
        return made_BH

    def _tried(self, x_BH: Tensor, generator: torch.Generator) -> list[Tensor]:  # noqa: ARG002 - as above
        return list(self.net(x_BH))


class Hide(Imputer):
    """HidE: noise is added to the vector, and removed step by step.

    Args:
        net: predicts the vector from a noised one and its step.
        schedule: of the noise.
        unit: as above.
        gradient_steps: see :class:`ImputerSettings`.
    """

    def __init__(
        self, net: nn.Module, schedule: Schedule, unit: float, gradient_steps: int | None = None
    ) -> None:
        super().__init__(unit)
        self.net, self.schedule, self._gradient_steps = net, schedule, gradient_steps

    def _made(self, x_BH: Tensor, generator: torch.Generator) -> Tensor:
        last_B = torch.full((len(x_BH),), self.schedule.steps)
        noised_BH = self._noised(x_BH, last_B, generator)
        return self.schedule.reversed(self.net, noised_BH, self._gradient_steps)

    def _tried(self, x_BH: Tensor, generator: torch.Generator) -> list[Tensor]:
        step_B = self.schedule.drawn(len(x_BH), generator)
        return [self.net(self._noised(x_BH, step_B, generator), step_B)]

    def _noised(self, x_BH: Tensor, step_B: Tensor, generator: torch.Generator) -> Tensor:
        noise_BH = torch.randn(x_BH.shape, generator=generator) / self._unit
        return self.schedule.noised(x_BH, step_B, noise_BH)


def hidden(present_BP: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """``seen_BP`` for :meth:`Imputer.loss`: a share of the present modalities is hidden.

    Not in the paper. The structure is never hidden.

    Args:
        present_BP: bool.
        share: the probability with which each modality is hidden; 0 hides none.
        generator: random source.
    """
    droppable_BP = present_BP.clone()
    droppable_BP[:, 0] = False
    return kept(present_BP, droppable_BP, share, generator)


def _hide(numbers: int, of: ImputerSettings) -> Imputer:
    net = DENOISERS[of.denoiser](numbers, of.widths, of.blocks, of.step_dim)
    return Hide(net, Schedule(of.steps, of.low, of.high, of.scale), of.unit, of.gradient_steps)


IMPUTERS: Final[Mapping[str, Callable[[int, ImputerSettings], Imputer]]] = {
    "ae": lambda numbers, of: Reconstruction(Autoencoder(numbers, of.widths), of.unit),
    "cra": lambda numbers, of: Reconstruction(Cascade(numbers, of.widths, of.blocks), of.unit),
    "hide": _hide,
    "mmin": lambda numbers, of: Imagination(Mmin(numbers, of.widths, of.blocks), of.unit),
}
"""By name: makes one for vectors of H numbers. Initial values come from torch's global generator."""
