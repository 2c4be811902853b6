"""DisentAFL's local training: the losses of one step, Adam, and how well it went. Imports torch.

Shapes: as ``supernet.py``.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from models.contract import FloatArray, Tensors
from models.methods.disentafl import DisentAflConfig, losses, moments
from models.methods.disentafl.distillation import FleetTeacher
from models.methods.disentafl.network.batch import SupernetBatch, Truth
from models.methods.disentafl.network.supernet import Subnet, SupernetView
from models.training import local
from protocol.tasks.task import Target

_SEEN_BATCH: Final = 256


def objective(target: Target, made: Tensor, truth: Truth) -> Tensor:
    """L_o."""
    if target.kind == "classification":
        return losses.cross_entropy(made, truth.y, truth.labelled_B)
    return losses.squared_error(made.flatten(1), truth.y, truth.labelled_B)


class LocalTraining:
    """One device's training in one round.

    Args:
        net: changed in place.
        config: the task's options.
        fleet: the fleet's features, with kd.
        generator: of shuffles.
        private: what the device keeps; Adam's moments are among it.
    """

    def __init__(
        self,
        net: Subnet,
        config: DisentAflConfig,
        fleet: FleetTeacher | None,
        generator: torch.Generator,
        private: Mapping[str, FloatArray],
    ) -> None:
        self._private = private
        self.kept: Tensors = {}
        """What the device keeps of Adam; after :meth:`run`."""
        self._net, self._config, self._fleet, self._generator = net, config, fleet, generator

    def run(self, batch: SupernetBatch, round_: int) -> dict[str, float]:
        """All epochs; the means of the last one: the loss (``mean_o L_o``) and the auxiliary ones."""
        config = self._config
        lr = local.learning_rate(config.lr, config.lr_decay, 0.0, round_)
        adam = moments.begun(self._net, config, lr, self._private)
        sums, steps = torch.zeros(4), 0
        for _ in range(config.epochs):
            sums = torch.zeros(4)
            for index_B in local.batches(len(batch), config.batch, self._generator):
                terms = self._step(adam, batch.at(index_B))
                sums += torch.stack([term.detach() for term in terms]) * (len(index_B) / len(batch))
                steps += 1
        self.kept = moments.after(self._net, config, adam, self._private)
        names = ("loss", "align", "orthogonal", "distil")
        kept = names if self._fleet else names[:3]
        return dict(zip(kept, sums.tolist(), strict=False)) | {"lr": lr, "steps": float(steps)}

    def train_fleet_last_layers(self, batch: SupernetBatch, last: Tensors, round_: int) -> Tensors:
        """The fleet's last layers, by wire name, after as many epochs on what the trained network makes.

        Not in the paper. It is the generic predictor beside the personal one of Chen and Chao (FedRoD, 2022),
        but no other part of the network is trained for it. The network is unchanged in the end.

        Args:
            batch: the windows that train.
            last: by wire name, as they come from the fleet.
            round_: its number.
        """
        config, net, own, zero = self._config, self._net, self._net.tensors(), torch.zeros(())
        net.load({**own, **last})
        net.requires_grad_(requires_grad=False)
        net.lasts.requires_grad_(requires_grad=True)
        lr = local.learning_rate(config.lr, config.lr_decay, 0.0, round_)
        adam = local.Adam(net.lasts.parameters(), lr, config.weight_decay)
        for _ in range(config.epochs):
            for index_B in local.batches(len(batch), config.batch, self._generator):
                some = batch.at(index_B)
                seen = net(some.present_BM, *some.x)
                objectives = [objective(t, seen.made[t.name], some.truth[t.name]) for t in net.targets]
                adam.descend(losses.total(objectives, zero, zero, (0.0, 0.0)))
        made = {name: tensor for name, tensor in net.tensors().items() if name in last}
        net.requires_grad_(requires_grad=True)
        net.load(own)
        return made

    def _step(self, adam: local.Adam, batch: SupernetBatch) -> tuple[Tensor, ...]:
        """One step; mean L_o, L_align, L_orth and the distillation loss."""
        config, seen = self._config, self._net(batch.present_BM, *batch.x)
        objectives = [objective(t, seen.made[t.name], batch.truth[t.name]) for t in self._net.targets]
        zero = torch.zeros(())
        align = losses.alignment(seen.share_BMH, batch.present_BM) if config.align else zero
        orthogonal = losses.orthogonality(*self._net.types(seen)) if config.orthogonal else zero
        distil = self._fleet.loss(seen, batch.truth) if self._fleet is not None else zero
        loss = losses.total(objectives, align, orthogonal, (config.align, config.orthogonal))
        adam.descend(loss + config.distil * distil if self._fleet is not None else loss)
        return torch.stack(objectives).mean(), align, orthogonal, distil


def seen_by(net: Subnet, batch: SupernetBatch) -> SupernetView:
    """What a network makes of all windows, without gradients."""
    with torch.no_grad():
        parts = [
            net(batch.present_BM[at : at + _SEEN_BATCH], *(x_BCT[at : at + _SEEN_BATCH] for x_BCT in batch.x))
            for at in range(0, len(batch), _SEEN_BATCH)
        ]
    return SupernetView(
        torch.cat([p.share_BMH for p in parts]),
        torch.cat([p.z_BMOF for p in parts]),
        torch.cat([p.there_BM for p in parts]),
        {t.name: torch.cat([p.made[t.name] for p in parts]) for t in net.targets},
    )


def agreement(net: Subnet, batch: SupernetBatch) -> dict[str, float]:
    """By target with a label among these windows, how well it is predicted: 0 to 1.

    Accuracy of a classification; ``1 / (1 + mean squared error)``, normalised, of the others.
    """
    if not len(batch):
        return {}
    seen, found = seen_by(net, batch), {}
    for target in net.targets:
        truth, made = batch.truth[target.name], seen.made[target.name]
        if not bool(truth.labelled_B.any()):
            continue
        if target.kind == "classification":
            hits_B = (made.argmax(dim=1) == truth.y)[truth.labelled_B]
            found[target.name] = float(hits_B.to(torch.float64).mean())
        else:
            found[target.name] = 1 / (1 + float(objective(target, made, truth)))
    return found


def accuracy(net: Subnet, found: Mapping[str, float]) -> float | None:
    """The number that judges a domain: the mean over classifications; of all targets, where none is one."""
    classes = [found[t.name] for t in net.targets if t.name in found and t.kind == "classification"]
    values = classes or list(found.values())
    return float(np.mean(values)) if values else None
