"""Devices that use the global model's confident predictions as labels. Imports torch.

FedProx and MOON add to the loss of FedAvg and FedOpt; see
:mod:`lichen_lab.benchmarks.studies.tactfl.baselines`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from lichen_lab.benchmarks.studies.tactfl.baselines.loop import Trained
from lichen_lab.benchmarks.studies.tactfl.settings import TactflSetting, UnlabelledDevice
from models.contract import Blobs
from models.methods.tactfl import METHOD
from models.methods.tactfl.coordinator_training.finetune import FinetuneBatch, features, remeasured
from models.methods.tactfl.coordinator_training.head_training import HeadRecipe
from models.multimodal.network import MultimodalNetwork, build, load_blobs, to_blobs
from models.seeds import derive_seed
from models.training import local
from protocol.tasks.task import Task

_BATCH: Final = 256
_FEWEST: Final = 2
"""Minimum of confident windows for training: BatchNorm cannot learn from one."""


@dataclass(frozen=True)
class LocalStep:
    """The inputs of a device's loss.

    Attributes:
        net: in training.
        parameters: of it, those that are trained.
        anchors: their values in the global model.
        others: the global model, and the device's last one; neither is trained.
    """

    net: MultimodalNetwork
    parameters: Sequence[Tensor]
    anchors: Sequence[Tensor]
    others: tuple[MultimodalNetwork, MultimodalNetwork]


class PseudoLabels:
    """See :class:`lichen_lab.benchmarks.studies.tactfl.baselines.loop.Local`.

    Args:
        task: network and options of the features.
        setting: training of the devices.
        options: ``confidence``; ``prox``, or ``moon`` and ``moon_tau``, if the method has them.
        seed: of the order of windows.
    """

    def __init__(self, task: Task, setting: TactflSetting, options: Mapping[str, float], seed: int) -> None:
        self._task, self._setting, self._options, self._seed = task, setting, options, seed
        self._recipe = HeadRecipe.of_head(METHOD.configure(task))
        self._last: dict[str, Blobs] = {}

    def begin(self, state: Blobs) -> Blobs:
        """Nothing is added."""
        return state

    def train(self, member: UnlabelledDevice, state: Blobs, round_: int) -> Trained | None:
        """All epochs on the windows with a confident prediction of the global model."""
        order = local.start_deterministic(derive_seed(self._seed, member.name, round_))
        whole, every = self._loaded(state).eval(), FinetuneBatch.of(self._task, member.windows)
        y_B, sure_B = self._labels(whole, every)
        if int(sure_B.sum()) < _FEWEST:
            return None
        net, last = self._loaded(state), self._loaded(self._last.get(member.name, state)).eval()
        own = [name for m, name in enumerate(net.names) if bool(every.present_BM[:, m].any())]
        parameters = [*(p for name in own for p in net.encoders[name].parameters()), *net.head.parameters()]
        step = LocalStep(net, parameters, [p.detach().clone() for p in parameters], (whole, last))
        self._descend(step, every.at(sure_B), y_B[sure_B], order)
        for m, name in enumerate(net.names):
            remeasured(net, name, every.x[name][every.present_BM[:, m]])
        self._after(member, net.eval(), every.at(sure_B), y_B[sure_B])
        made = to_blobs(net)
        self._last[member.name] = made
        sent = {"head", *(f"encoder/{name}" for name in own)}
        return float(sure_B.sum()), {name: part for name, part in made.items() if name in sent}

    def _loaded(self, state: Blobs) -> MultimodalNetwork:
        net = build(self._task)
        load_blobs(net, state)
        return net

    def _labels(self, whole: MultimodalNetwork, every: FinetuneBatch) -> tuple[Tensor, Tensor]:
        """The global model's classes, and a mask of confident ones."""
        parts = [torch.zeros(0, len(self._task.labels))]
        with torch.no_grad():
            for index_B in torch.split(torch.arange(len(every)), _BATCH):
                z = features(whole, every.at(index_B), self._recipe)
                parts.append(torch.softmax(whole.classify(z), dim=1))
        sure_B, y_B = torch.cat(parts).max(dim=1)
        return y_B, sure_B >= self._options["confidence"]

    def _descend(self, step: LocalStep, known: FinetuneBatch, y_B: Tensor, order: torch.Generator) -> None:
        adam = local.Adam(step.parameters, self._setting.lr)
        step.net.train()
        for _ in range(self._setting.epochs):
            for index_B in local.batches(len(known), self._setting.batch, order):
                adam.descend(self._loss(step, known.at(index_B), y_B[index_B]))

    def _loss(self, step: LocalStep, batch: FinetuneBatch, y_B: Tensor) -> Tensor:
        z = features(step.net, batch, self._recipe)
        return self._with_terms(cross_entropy(step.net.classify(z), y_B), step, batch, y_B, joined(z))

    def _with_terms(
        self, loss: Tensor, step: LocalStep, batch: FinetuneBatch, y_B: Tensor, z_BF: Tensor
    ) -> Tensor:
        """The loss with the method's own terms."""
        del y_B
        if self._options.get("prox"):
            loss = loss + self._options["prox"] / 2 * proximal(step.parameters, step.anchors)
        if self._options.get("moon"):
            with torch.no_grad():
                near_BF, far_BF = (joined(features(net, batch, self._recipe)) for net in step.others)
            loss = loss + self._options["moon"] * contrast(z_BF, near_BF, far_BF, self._options["moon_tau"])
        return loss

    def _after(
        self, member: UnlabelledDevice, net: MultimodalNetwork, known: FinetuneBatch, y_B: Tensor
    ) -> None:
        """Called with a device's trained network and its confident windows; here it does nothing."""


def joined(z: Mapping[str, Tensor]) -> Tensor:
    """``z_BF`` of all modalities, concatenated, F = M * D."""
    return torch.cat(list(z.values()), dim=1)


def proximal(parameters: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """Squared distance from the global model (Li et al. 2020, (2))."""
    return torch.stack([(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]).sum()


def contrast(z_BF: Tensor, global_BF: Tensor, last_BF: Tensor, tau: float) -> Tensor:
    """The model-contrastive loss (Li et al. 2021, (3)), mean over windows."""
    near_B = cosine_similarity(z_BF, global_BF, dim=1) / tau
    far_B = cosine_similarity(z_BF, last_BF, dim=1) / tau
    return (torch.logaddexp(near_B, far_B) - near_B).mean()
