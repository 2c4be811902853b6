"""Pseudo-labels with prototypes of classes that the fleet shares (FPL). Imports torch.

Huang, Ye, Shi, Li and Du, Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023.
Shapes: B windows, F features of all modalities, P prototypes of a class, C of all classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lichen_lab.benchmarks.studies.tactfl.baselines.loop import Trained
from lichen_lab.benchmarks.studies.tactfl.baselines.pseudo import LocalStep, PseudoLabels, joined
from lichen_lab.benchmarks.studies.tactfl.settings import TactflSetting, UnlabelledDevice
from models.contract import Blobs
from models.methods.tactfl.coordinator_training.finetune import FinetuneBatch, features
from models.multimodal.network import MultimodalNetwork
from protocol.tasks.task import Task

Means = Mapping[int, Tensor]
"""Class -> a device's mean feature, (F,)."""


def clustered(of_devices_PF: Tensor) -> Tensor:
    """The means of the clusters of one class's prototypes: each belongs to the cluster of its nearest one.

    The first partition of FINCH (Sarfraz et al. 2019): prototypes are joined where one is the nearest of the
    other, by cosine, or where both have the same nearest one.
    """
    count = len(of_devices_PF)
    if count == 1:
        return of_devices_PF
    unit_PF = normalize(of_devices_PF, dim=1)
    nearest_P = (unit_PF @ unit_PF.T).fill_diagonal_(-torch.inf).argmax(dim=1).tolist()
    group = list(range(count))
    for one, other in enumerate(nearest_P):
        old, new = group[one], group[other]
        group = [new if at == old else at for at in group]
    members = torch.tensor(group)
    return torch.stack([of_devices_PF[members == at].mean(dim=0) for at in sorted(set(group))])


@dataclass(frozen=True)
class FleetPrototypes:
    """What devices learn from the prototypes of the last round.

    Attributes:
        cluster_CF: the means of all clusters of all classes.
        class_C: their classes.
        unbiased: class -> the mean of its clusters, (F,).
    """

    cluster_CF: Tensor
    class_C: Tensor
    unbiased: Means

    @classmethod
    def of(cls, sent: Sequence[Means]) -> Self | None:
        """From the devices' means; None without any."""
        classes = sorted({label for means in sent for label in means})
        if not classes:
            return None
        clusters = {c: clustered(torch.stack([means[c] for means in sent if c in means])) for c in classes}
        labels = [c for c, cluster_PF in clusters.items() for _ in cluster_PF]
        unbiased = {c: cluster_PF.mean(dim=0) for c, cluster_PF in clusters.items()}
        return cls(torch.cat(list(clusters.values())), torch.tensor(labels), unbiased)

    def contrast(self, z_BF: Tensor, y_B: Tensor, tau: float) -> Tensor:
        """Cluster prototypes contrast: towards the clusters of a window's class, away from the others."""
        scores_BC = normalize(z_BF, dim=1) @ normalize(self.cluster_CF, dim=1).T / tau
        own_BC = y_B[:, None] == self.class_C[None, :]
        known_B = own_BC.any(dim=1)
        if not bool(known_B.any()):
            return z_BF.sum() * 0
        own_B = scores_BC.masked_fill(~own_BC, -torch.inf)[known_B].logsumexp(dim=1)
        return (scores_BC[known_B].logsumexp(dim=1) - own_B).mean()

    def consistency(self, z_BF: Tensor, y_B: Tensor) -> Tensor:
        """Unbiased prototypes: mean squared distance of a feature from the mean of its class."""
        known = [at for at, label in enumerate(y_B.tolist()) if label in self.unbiased]
        if not known:
            return z_BF.sum() * 0
        wanted_BF = torch.stack([self.unbiased[int(y_B[at])] for at in known])
        return (z_BF[known] - wanted_BF).square().mean()


class PrototypeLabels(PseudoLabels):
    """See :class:`lichen_lab.benchmarks.studies.tactfl.baselines.loop.Local`.

    Devices send the mean feature of each class that they are confident of; those of a round's devices serve
    in the next round.

    Args:
        task: network and options of the features.
        setting: training of the devices.
        options: ``confidence``; ``fpl``, the weight of both terms; ``fpl_tau``.
        seed: of the order of windows.
    """

    def __init__(self, task: Task, setting: TactflSetting, options: Mapping[str, float], seed: int) -> None:
        super().__init__(task, setting, options, seed)
        self._round = 0
        self._sent: list[Means] = []
        self._shared: FleetPrototypes | None = None

    def train(self, member: UnlabelledDevice, state: Blobs, round_: int) -> Trained | None:
        """All epochs; the first device of a round finds the prototypes of the last one."""
        if round_ != self._round:
            self._round, self._shared, self._sent = round_, FleetPrototypes.of(self._sent), []
        return super().train(member, state, round_)

    def _with_terms(
        self, loss: Tensor, step: LocalStep, batch: FinetuneBatch, y_B: Tensor, z_BF: Tensor
    ) -> Tensor:
        del step, batch
        if self._shared is None:
            return loss
        terms = self._shared.contrast(z_BF, y_B, self._options["fpl_tau"]) + self._shared.consistency(
            z_BF, y_B
        )
        return loss + self._options["fpl"] * terms

    def _after(
        self, member: UnlabelledDevice, net: MultimodalNetwork, known: FinetuneBatch, y_B: Tensor
    ) -> None:
        del member
        with torch.no_grad():
            z_BF = joined(features(net, known, self._recipe))
        self._sent.append({label: z_BF[y_B == label].mean(dim=0) for label in sorted(set(y_B.tolist()))})
