"""Training with labels that methods share: batches, features, cross-entropy, plain SGD. Imports torch.

Shapes: B windows, N of a round, M modalities, C channels, T samples, D features, K classes.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from models.contract import FloatArray, Tensors, WindowSet
from models.multimodal.network import MultimodalNetwork, to_blobs
from models.multimodal.prototypes import normalise
from models.tensors import flatten
from models.training import augmentation, local
from models.training.supervised_options import SupervisedConfig
from models.training.training_choices import Housings, housings_of, weight_of_each
from protocol.tasks.task import Task

Chosen = dict[str, NDArray[np.bool_] | None]
"""By modality, which windows of a round (N,); None: no measurement."""


@dataclass(frozen=True)
class TrainingTask:
    """What a task says about local training besides the method's options.

    Attributes:
        labels: the classes.
        housings: groups of modalities that rotate together.
        changes: augmentation of the modalities that have one.
    """

    labels: tuple[str, ...]
    housings: Housings
    changes: Mapping[str, augmentation.Change]

    @classmethod
    def of(cls, task: Task, options: SupervisedConfig) -> "TrainingTask":
        """Of a task with these options."""
        return cls(task.labels, housings_of(task, options.housings), augmentation.augmenters(task))


@dataclass(frozen=True)
class Batch:
    """The windows of a round, or of one step, as tensors; ``at_B``: their places in the round."""

    x: Mapping[str, Tensor]
    present_BM: Tensor
    y_B: Tensor
    at_B: Tensor


class SupervisedTraining:
    """One device's training in one round, on ``net`` in place; a missing modality is a feature of zeros.

    Attributes:
        trained: modalities whose encoder took part in a step.
        measured: by modality, the places of the windows that BatchNorm's statistics were measured on, and
            their features ``z_BD``.

    Args:
        net: with the values that the round begins with.
        about: of the task.
        options: of the method.
        generator: of shuffles and noise.
        proximal: see :class:`models.training.local.Sgd`.
    """

    def __init__(
        self,
        net: MultimodalNetwork,
        about: TrainingTask,
        options: SupervisedConfig,
        generator: torch.Generator,
        *,
        proximal: float = 0.0,
    ) -> None:
        self._net = net
        self._about = about
        self._options = options
        self._generator = generator
        self._proximal = proximal
        self.trained: frozenset[str] = frozenset()
        self.measured: dict[str, tuple[NDArray[np.int64], FloatArray]] = {}
        self._weight_K: Tensor | None = None

    def run(self, windows: WindowSet, round_: int) -> dict[str, float]:
        """All epochs; the metrics of the last one."""
        options = self._options
        lr = local.learning_rate(options.lr, options.lr_decay, options.lr_min, round_)
        parameters = (tensor for tensor in self._net.sent.values() if tensor.requires_grad)
        sgd = local.Sgd(parameters, lr, options.momentum, options.weight_decay, self._proximal)
        everything = whole(windows, self._net.names)
        chosen = self.chosen_for_norms(windows) if options.remeasure_norms else {}
        before = {
            name: local.norms(self._net.encoders[name]) for name, some_B in chosen.items() if some_B is None
        }
        self._weight_K = self.class_weight(windows)
        self._net.train()
        losses, hits, steps = [0.0], 0, 0
        for _ in range(options.epochs):
            losses, hits = [], 0
            for index_B in self.batches(everything.y_B):
                loss, right = self._step(sgd, self.batch(everything, index_B))
                losses.append(loss * len(index_B))
                hits += right
                steps += 1
        self._net.eval()
        for name in self._net.names:
            if name in chosen and name in self.trained:
                self._remeasure(name, everything.x[name], chosen[name], before)
        return {
            "loss": sum(losses) / len(windows),
            "accuracy": hits / len(windows),
            "lr": lr,
            "steps": float(steps),
        }

    def class_weight(self, windows: WindowSet) -> Tensor | None:
        """The weight of a window of each class (K,); None: all count alike."""
        counts_K = np.bincount(windows.y_B, minlength=len(self._about.labels)).tolist()
        weights = weight_of_each(self._options.class_weights, self._about.labels, counts_K)
        return None if weights is None else torch.tensor(weights)

    def batches(self, y_N: Tensor) -> Iterator[Tensor]:
        """The windows of each step of an epoch."""
        if self._options.balanced_batches:
            return local.balanced_batches(y_N, self._options.batch, self._generator)
        return local.batches(len(y_N), self._options.batch, self._generator)

    def batch(self, everything: Batch, index_B: Tensor) -> Batch:
        """The windows of a step, augmented and with modalities dropped."""
        options, about, rng = self._options, self._about, self._generator
        x = {name: x_NCT[index_B] for name, x_NCT in everything.x.items()}
        present_BM = everything.present_BM[index_B]
        x = local.augmented(x, options.rotate_deg, options.gain, about.housings, rng)
        here = dict(zip(self._net.names, present_BM.unbind(dim=1), strict=True))
        batch = Batch(
            x=augmentation.apply(about.changes, x, here, rng),
            present_BM=present_BM,
            y_B=everything.y_B[index_B],
            at_B=index_B,
        )
        return self._dropped(batch) if options.modality_dropout else batch

    def scaled(self, z: Tensor) -> Tensor:
        """Features at their set length; unchanged when ``normalise`` is off."""
        return normalise(z, self._options.feature_scale) if self._options.normalise else z

    def chosen_for_norms(self, windows: WindowSet) -> Chosen:
        """The windows that BatchNorm's statistics are measured on; None: those of the base stay."""
        return {name: windows.present_BM[:, m] for m, name in enumerate(self._net.names)}

    def droppable(self, batch: Batch) -> Tensor:
        """Which modalities of which windows modality dropout may take (B, M)."""
        return batch.present_BM

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Each modality's ``z_BD``, missing ones filled in."""
        here = zip(self._net.names, batch.present_BM.unbind(dim=1), strict=True)
        return {name: self.encoded(name, batch.x[name], here_B) for name, here_B in here}

    def loss(self, batch: Batch, z: Mapping[str, Tensor], logits_BK: Tensor) -> Tensor:
        """The loss of a step, from completed features and their scores."""
        del z
        return cross_entropy(logits_BK, batch.y_B, self._weight_K)

    def encoded(self, name: str, x_BCT: Tensor, encode_B: Tensor) -> Tensor:
        """A modality's ``z_BD`` of some windows, zeros for the others."""
        if bool(encode_B.all()):  # the usual case, in which rows need not be copied twice
            self.trained |= {name}
            return self.scaled(self._net.encode(name, x_BCT))
        z_BD = torch.zeros(len(encode_B), self._net.shape[1])
        if bool(encode_B.any()):
            self.trained |= {name}
            z_BD[encode_B] = self.scaled(self._net.encode(name, x_BCT[encode_B]))
        return z_BD

    def _step(self, sgd: local.Sgd, batch: Batch) -> tuple[float, int]:
        z = self.features(batch)
        logits_BK = self._net.classify(z)
        loss = self.loss(batch, z, logits_BK)
        sgd.descend(loss)
        return float(loss.detach()), int((logits_BK.argmax(dim=1) == batch.y_B).sum())

    def _dropped(self, batch: Batch) -> Batch:
        """The batch after modality dropout."""
        keep_BM = local.kept(
            batch.present_BM, self.droppable(batch), self._options.modality_dropout, self._generator
        )
        x = {
            name: torch.where(keep_BM[:, m, None, None], x_BCT, 0.0)
            for m, (name, x_BCT) in enumerate(batch.x.items())
        }
        return replace(batch, x=x, present_BM=keep_BM)

    def _remeasure(
        self,
        name: str,
        x_NCT: Tensor,
        chosen_N: NDArray[np.bool_] | None,
        before: Mapping[str, list[Tensor]],
    ) -> None:
        """BatchNorm statistics of a trained encoder, on the windows in the form of inference."""
        if chosen_N is None:
            local.restore_norms(self._net.encoders[name], before[name])
            return
        z_BD = self._net.measure_norms(name, x_NCT if chosen_N.all() else x_NCT[torch.from_numpy(chosen_N)])
        self.measured[name] = np.flatnonzero(chosen_N), z_BD.numpy()


def whole(windows: WindowSet, names: Collection[str]) -> Batch:
    """All windows of a round as tensors, with the modalities of these names, in the task's order."""
    present_NM = torch.from_numpy(windows.present_BM)
    x = {name: torch.from_numpy(np.ascontiguousarray(windows.x[name])) for name in names}
    if not windows.present_BM.all():
        x = {
            name: torch.where(present_NM[:, m, None, None], x_NCT, 0.0)
            for m, (name, x_NCT) in enumerate(x.items())
        }
    return Batch(x, present_NM, torch.from_numpy(windows.y_B), torch.arange(len(windows)))


def cross_entropy(logits_BK: Tensor, y_B: Tensor, weight_K: Tensor | None = None) -> Tensor:
    """Cross-entropy: the mean over windows, by the weights of their classes."""
    loss = functional.cross_entropy(logits_BK, y_B, weight_K)
    # only windows of weight 0: 0 / 0
    return loss if weight_K is None else torch.where(weight_K[y_B].sum() > 0, loss, logits_BK.sum() * 0)


def trained_parts(net: MultimodalNetwork, trained: Collection[str]) -> Tensors:
    """The tensors, by full name, of the head and of the encoders of the modalities that had windows."""
    blobs = {"head", *(f"encoder/{name}" for name in trained)}
    return flatten({blob: tensors for blob, tensors in to_blobs(net).items() if blob in blobs})
