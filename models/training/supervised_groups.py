"""Training with labels of several devices of a simulation at once, as one computation. Imports torch.

Devices fit together if their windows are complete and equal in number: their batches are of one size, and no
feature is filled in. Each device draws its batches from a generator of its own, as
:class:`models.training.supervised.SupervisedTraining` does alone.

Shapes: G devices, N windows of each, B of them in a batch, M modalities, C channels, T samples, D features,
K classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.contract import FloatArray, Tensors, WindowSet
from models.multimodal.encoders.steps import measured_together, window_values
from models.multimodal.network import MultimodalNetwork
from models.multimodal.stacked import StackedNetwork
from models.training import local
from models.training.group_client import GroupMember
from models.training.supervised import Batch, SupervisedTraining, whole
from models.training.supervised_options import SupervisedConfig

_VALUES: Final = 1 << 23
"""Limit of the values of a group between two steps of an encoder (32 MB)."""


@dataclass(frozen=True)
class GroupCandidate:
    """A device that can train in a group: its place in the call, its labelled windows, counts of others."""

    place: int
    member: GroupMember
    windows: WindowSet
    metrics: dict[str, float]


def fits(net: MultimodalNetwork, windows: WindowSet) -> bool:
    """Whether a device can train in a group: its windows are complete, and fit in memory."""
    return bool(windows.present_BM.all()) and all(
        len(windows) <= measured_together(net.stepped(name), windows.x[name][:1].size) for name in net.names
    )


def grouped(net: MultimodalNetwork, candidates: Iterable[GroupCandidate]) -> Iterator[list[GroupCandidate]]:
    """Groups of two devices or more with equally many windows; memory is bounded. Others are left out."""
    by_count: dict[int, list[GroupCandidate]] = {}
    for one in candidates:
        by_count.setdefault(len(one.windows), []).append(one)
    for count, same in by_count.items():
        x = same[0].windows.x
        each = max(window_values(net.stepped(name), x[name][:1].size) for name in net.names)
        many = max(1, _VALUES // (each * count))
        groups = (same[first : first + many] for first in range(0, len(same), many))
        yield from (group for group in groups if len(group) > 1)


class GroupTraining:
    """The training of several devices in one round, each from the values of ``net``, which stay.

    Args:
        net: can be stacked (:func:`models.multimodal.stacked.stacking_trouble`).
        devices: each with its generator; they do not train by themselves.
        windows: of each device; all of them fit (:func:`fits`), and are equal in number.
        options: of the method.
        proximal: as of each device.
    """

    def __init__(
        self,
        net: MultimodalNetwork,
        devices: Sequence[SupervisedTraining],
        windows: Sequence[WindowSet],
        options: SupervisedConfig,
        *,
        proximal: float = 0.0,
    ) -> None:
        self._names = net.names
        self._options, self._proximal = options, proximal
        self._stacked = StackedNetwork(net, len(windows))
        self._devices = devices
        self._windows = windows
        self._everything = [whole(one, net.names) for one in windows]

    def run(self, round_: int) -> list[dict[str, float]]:
        """All epochs; each device's metrics of the last one."""
        options, count = self._options, len(self._windows[0])
        lr = local.learning_rate(options.lr, options.lr_decay, options.lr_min, round_)
        sgd = local.Sgd(self._stacked.parameters, lr, options.momentum, options.weight_decay, self._proximal)
        weight_GK, many = self._class_weights(), len(self._windows)
        loss_G, hits_G, steps = torch.zeros(many, dtype=torch.float64), torch.zeros(many), 0
        for _ in range(options.epochs):
            loss_G.zero_()
            hits_G.zero_()
            for batches in self._batches():
                mean_G, right_G = self._step(sgd, batches, weight_GK)
                loss_G += mean_G * len(batches[0].y_B)
                hits_G += right_G
                steps += 1
        common = {"lr": lr, "steps": float(steps)}
        return [
            {"loss": loss / count, "accuracy": hits / count, **common}
            for loss, hits in zip(loss_G.tolist(), hits_G.tolist(), strict=True)
        ]

    def features(self) -> dict[str, FloatArray]:
        """``z_GND`` of all windows by modality, at inference; first, BatchNorm's statistics are measured."""
        stacked = self._stacked
        made = stacked.measure_norms if self._options.remeasure_norms else stacked.features
        return {name: made(name, _joined(self._everything, name)).numpy() for name in self._names}

    def arrays(self) -> dict[str, FloatArray]:
        """The trained tensors, (G, ...) each, by full name."""
        return self._stacked.arrays()

    def deltas(self, base: Tensors) -> list[Tensors]:
        """What each device sends: its tensors minus those of the base, by full name."""
        changes = {
            name: np.subtract(array, base[name], dtype=np.float32) for name, array in self.arrays().items()
        }
        return [{name: change[g] for name, change in changes.items()} for g in range(len(self._devices))]

    def _class_weights(self) -> Tensor | None:
        pairs = zip(self._devices, self._windows, strict=True)
        weights = [weight_K for one, windows in pairs if (weight_K := one.class_weight(windows)) is not None]
        return torch.stack(weights) if weights else None

    def _batches(self) -> Iterator[list[Batch]]:
        """The windows of each step of an epoch, by device."""
        pairs = list(zip(self._devices, self._everything, strict=True))
        for indices in zip(*(one.batches(its.y_B) for one, its in pairs), strict=True):
            yield [one.batch(its, index_B) for (one, its), index_B in zip(pairs, indices, strict=True)]

    def _step(
        self, sgd: local.Sgd, batches: Sequence[Batch], weight_GK: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One step of all devices; the loss of each, and how many windows it had right."""
        scaled = self._devices[0].scaled
        z = {name: scaled(self._stacked.encode(name, _joined(batches, name))) for name in self._names}
        logits_GBK = self._stacked.classify(z)
        y_GB = torch.stack([batch.y_B for batch in batches])
        loss_G = _cross_entropies(logits_GBK, y_GB, weight_GK)
        sgd.descend(loss_G.sum())
        return loss_G.detach(), (logits_GBK.argmax(dim=2) == y_GB).sum(dim=1)


def _joined(batches: Sequence[Batch], name: str) -> Tensor:
    """``x_BGCT`` of a modality."""
    return torch.stack([batch.x[name] for batch in batches], dim=1)


def _cross_entropies(logits_GBK: Tensor, y_GB: Tensor, weight_GK: Tensor | None) -> Tensor:
    """:func:`models.training.supervised.cross_entropy` of each device, (G,)."""
    loss_GB = functional.cross_entropy(logits_GBK.transpose(1, 2), y_GB, reduction="none")
    if weight_GK is None:
        return loss_GB.mean(dim=1)
    weight_GB = weight_GK.gather(1, y_GB)
    # all windows of weight 0: a loss of 0
    return (weight_GB * loss_GB).sum(dim=1) / weight_GB.sum(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
