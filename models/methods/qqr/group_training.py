"""QQR's local training of several devices at once, as one computation. Imports torch.

Devices fit together if their windows are complete, of good quality and equal in number: their batches are of
one size, nothing is imputed (18, 19), and (22) is the task's loss (20). Each device draws its batches from a
generator of its own, as :class:`models.methods.qqr.local_training.LocalTraining` does alone.

Shapes: G devices, N windows of each, B of them in a batch, M modalities, C channels, T samples, D features,
K classes.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from models.contract import FloatArray, WindowSet
from models.methods.qqr import QqrConfig
from models.methods.qqr.local_training import Batch, Globals, LocalTraining, whole
from models.multimodal.encoders.steps import measured_together, window_values
from models.multimodal.network import MultimodalNetwork
from models.multimodal.stacked import StackedNetwork, stacking_trouble
from models.training import local

_VALUES: Final = 1 << 23
"""Limit of the values of a group between two steps of an encoder (32 MB)."""


def group_trouble(net: MultimodalNetwork, config: QqrConfig) -> str:
    """Why devices of a task cannot train at once, in words; empty: they can."""
    if config.upload == "prototypes":
        return 'config.upload = "prototypes": devices train nothing'
    if config.model_every > 1:
        return f"config.model_every = {config.model_every}: devices begin from weights of their own"
    if config.modality_dropout:
        return f"config.modality_dropout = {config.modality_dropout}: windows of a batch lack modalities"
    return stacking_trouble(net)


def fits(net: MultimodalNetwork, known: Globals, windows: WindowSet) -> bool:
    """Whether a device can train in a group: its windows are complete, of good quality, and fit in memory."""
    good = windows.present_BM.all() and known.high_quality(windows.quality_BM).all()
    return bool(good) and all(
        len(windows) <= measured_together(net.stepped(name), windows.x[name][:1].size) for name in net.names
    )


def devices_at_once(net: MultimodalNetwork, windows: WindowSet) -> int:
    """How many devices with such windows may be in a group: memory is bounded."""
    each = max(window_values(net.stepped(name), windows.x[name][:1].size) for name in net.names)
    return max(1, _VALUES // (each * len(windows)))


class GroupTraining:
    """The training of several devices in one round, each from the values of ``net``, which stay.

    Args:
        net: without :func:`group_trouble`.
        known: what the devices know of the fleet.
        config: the method's options.
        windows: of each device; all of them fit (:func:`fits`), and are equal in number.
        generators: of each device.
    """

    def __init__(
        self,
        net: MultimodalNetwork,
        known: Globals,
        config: QqrConfig,
        windows: Sequence[WindowSet],
        generators: Sequence[torch.Generator],
    ) -> None:
        self._names = net.names
        self._known, self._config = known, config
        self._stacked = StackedNetwork(net, len(windows))
        self._devices = [LocalTraining(net, known, config, generator) for generator in generators]
        self._windows = windows
        self._everything = [whole(one, known) for one in windows]

    def run(self, round_: int) -> list[dict[str, float]]:
        """All epochs; each device's metrics of the last one."""
        config, count = self._config, len(self._windows[0])
        lr = local.learning_rate(config.lr, config.lr_decay, config.lr_min, round_)
        sgd = local.Sgd(self._stacked.parameters, lr, config.momentum, config.weight_decay)
        weight_GK, many = self._class_weights(), len(self._windows)
        loss_G, hits_G, steps = torch.zeros(many, dtype=torch.float64), torch.zeros(many), 0
        for _ in range(config.epochs):
            loss_G.zero_()
            hits_G.zero_()
            for batches in self._batches():
                mean_G, right_G = self._step(sgd, batches, weight_GK)
                loss_G += mean_G * len(batches[0].y_B)
                hits_G += right_G
                steps += 1
        common = {"lr": lr, "steps": float(steps), "low_quality": 0.0}
        return [
            {"loss": loss / count, "accuracy": hits / count, **common}
            for loss, hits in zip(loss_G.tolist(), hits_G.tolist(), strict=True)
        ]

    def features(self) -> dict[str, FloatArray]:
        """``z_GND`` of all windows by modality, at inference; first, BatchNorm's statistics are measured."""
        stacked = self._stacked
        made = stacked.measure_norms if self._config.remeasure_norms else stacked.features
        return {name: made(name, _joined(self._everything, name)).numpy() for name in self._names}

    def arrays(self) -> dict[str, FloatArray]:
        """The trained tensors, (G, ...) each, by full name."""
        return self._stacked.arrays()

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
        z = {
            name: self._known.scaled(self._stacked.encode(name, _joined(batches, name)))
            for name in self._names
        }
        logits_GBK = self._stacked.classify(z)
        y_GB = torch.stack([batch.y_B for batch in batches])
        loss_G = _cross_entropies(logits_GBK, y_GB, weight_GK)
        sgd.descend(loss_G.sum())
        return loss_G.detach(), (logits_GBK.argmax(dim=2) == y_GB).sum(dim=1)


def _joined(batches: Sequence[Batch], name: str) -> Tensor:
    """``x_BGCT`` of a modality."""
    return torch.stack([batch.x[name] for batch in batches], dim=1)


def _cross_entropies(logits_GBK: Tensor, y_GB: Tensor, weight_GK: Tensor | None) -> Tensor:
    """:func:`models.methods.qqr.losses.cross_entropy` of each device, (G,)."""
    loss_GB = functional.cross_entropy(logits_GBK.transpose(1, 2), y_GB, reduction="none")
    if weight_GK is None:
        return loss_GB.mean(dim=1)
    weight_GB = weight_GK.gather(1, y_GB)
    # all windows of weight 0: a loss of 0
    return (weight_GB * loss_GB).sum(dim=1) / weight_GB.sum(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
