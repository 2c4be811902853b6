"""QQR's local training: batches, PNR, the loss of (20) to (22), plain SGD. Imports torch.

Shapes: B windows, M modalities, C channels, T samples, D features, K classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.contract import FloatArray, WindowSet
from models.methods.qqr import QqrConfig
from models.methods.qqr.local_rounds import WHATEVER_THE_CLASS
from models.methods.qqr.losses import (
    cross_entropy,
    imputed,
    imputed_by_mean,
    imputed_by_posterior,
    prototype_cross_entropy,
    rebalanced,
)
from models.methods.qqr.prototyper import high_quality
from models.multimodal.network import MultimodalNetwork
from models.multimodal.prototypes import normalise
from models.training import augmentation, local
from models.training.training_choices import Housings, housings_of, weight_of_each
from protocol.tasks.task import Task

_FEW = 16
"""Windows that BatchNorm's statistics need at least, if others of low quality are available."""


@dataclass(frozen=True)
class Globals:
    """The device's knowledge of the fleet besides the network.

    Attributes:
        encoders: modalities that this device has an encoder for.
        vbar: global prototypes ``vbar_KD`` by modality, of length ``feature_scale`` if so configured.
        seen: which classes have one, ``(K,)`` bool by modality.
        config: the method's options.
        labels: the task's classes.
        housings: groups of modalities that rotate together.
        changes: augmentation of the modalities that have one.
    """

    encoders: frozenset[str]
    vbar: Mapping[str, Tensor]
    seen: Mapping[str, Tensor]
    config: QqrConfig
    labels: tuple[str, ...] = ()
    housings: Housings = ()
    changes: Mapping[str, augmentation.Change] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        task: Task,
        encoders: frozenset[str],
        tables: Mapping[str, tuple[FloatArray, FloatArray]],
        config: QqrConfig,
    ) -> "Globals":
        """From the global state's tables of values and rounds."""
        seen = {name: torch.from_numpy(tables[name][1] > 0) for name in task.modality_names}
        housings = housings_of(task, config.housings)
        made = cls(encoders, {}, seen, config, task.labels, housings, augmentation.augmenters(task))
        vbar = {name: made.scaled(torch.from_numpy(tables[name][0])) for name in task.modality_names}
        return replace(made, vbar=vbar)

    def scaled(self, z: Tensor) -> Tensor:
        """A feature or prototype at its set length; unchanged when ``normalise`` is off."""
        return normalise(z, self.config.feature_scale) if self.config.normalise else z

    def high_quality(self, quality_BM: FloatArray) -> NDArray[np.bool_]:
        """The q of (14): all true when quality is not read."""
        return high_quality(quality_BM, self.config)

    def q(self, windows: WindowSet) -> NDArray[np.bool_]:
        """The q of (22), (B, M): false for a feature that is pulled towards its prototype."""
        high_BM = self.high_quality(windows.quality_BM)
        complete_B1 = windows.present_BM.all(axis=1, keepdims=True)
        return high_BM & complete_B1 if self.config.pce_on_incomplete else high_BM

    def replaceable(self, y_B: Tensor) -> Tensor:
        """Whether each (window, modality) could be imputed if it is missing, (B, M)."""
        if self.config.impute == "pnr":
            return torch.stack([seen_K[y_B] for seen_K in self.seen.values()], dim=1)
        if self.config.impute in WHATEVER_THE_CLASS:
            return torch.stack([seen_K.any().expand(len(y_B)) for seen_K in self.seen.values()], dim=1)
        return torch.ones(len(y_B), len(self.seen), dtype=torch.bool)


@dataclass(frozen=True)
class Batch:
    """One step's windows as tensors; ``q_BM`` is that of (22)."""

    x: Mapping[str, Tensor]
    present_BM: Tensor
    q_BM: Tensor
    y_B: Tensor


class LocalTraining:
    """One device's training in one round, on ``net`` in place.

    Attributes:
        trained: modalities whose encoder took part in a step.
        measured: by modality, the places of the windows that BatchNorm's statistics were measured on, and
            their features ``z_BD``.
    """

    def __init__(
        self, net: MultimodalNetwork, known: Globals, config: QqrConfig, generator: torch.Generator
    ) -> None:
        self._net = net
        self._known = known
        self._config = config
        self._generator = generator
        self.trained: frozenset[str] = frozenset()
        self.measured: dict[str, tuple[NDArray[np.int64], FloatArray]] = {}
        self._weight_K: Tensor | None = None

    def run(self, windows: WindowSet, round_: int) -> dict[str, float]:
        """All epochs; the metrics of the last one."""
        config = self._config
        lr = local.learning_rate(config.lr, config.lr_decay, config.lr_min, round_)
        parameters = (tensor for tensor in self._net.sent.values() if tensor.requires_grad)
        sgd = local.Sgd(parameters, lr, config.momentum, config.weight_decay)
        everything, good_BM = whole(windows, self._known), self._known.high_quality(windows.quality_BM)
        clean = self._clean(windows.present_BM, good_BM) if config.remeasure_norms else {}
        before = {
            name: local.norms(self._net.encoders[name]) for name, clean_B in clean.items() if clean_B is None
        }
        self._weight_K = self.class_weight(windows)
        self._net.train()
        losses, hits, steps = [0.0], 0, 0
        for _ in range(config.epochs):
            losses, hits = [], 0
            for index_B in self.batches(everything.y_B):
                loss, right = self._step(sgd, self.batch(everything, index_B))
                losses.append(loss * len(index_B))
                hits += right
                steps += 1
        self._net.eval()
        for name in self._net.names:
            if name in clean and name in self.trained:
                self._remeasure(name, everything.x[name], clean[name], before)
        low_B = (windows.present_BM & ~good_BM).any(axis=1)
        return {
            "loss": sum(losses) / len(windows),
            "accuracy": hits / len(windows),
            "lr": lr,
            "steps": float(steps),
            "low_quality": float(low_B.sum()),
        }

    def class_weight(self, windows: WindowSet) -> Tensor | None:
        """The weight of a window of each class (K,); None: all count alike."""
        counts_K = np.bincount(windows.y_B, minlength=len(self._known.labels)).tolist()
        weights = weight_of_each(self._config.class_weights, self._known.labels, counts_K)
        return None if weights is None else torch.tensor(weights)

    def batches(self, y_N: Tensor) -> Iterator[Tensor]:
        """The windows of each step of an epoch."""
        if self._config.balanced_batches:
            return local.balanced_batches(y_N, self._config.batch, self._generator)
        return local.batches(len(y_N), self._config.batch, self._generator)

    def _clean(
        self, present_BM: NDArray[np.bool_], good_BM: NDArray[np.bool_]
    ) -> dict[str, NDArray[np.bool_] | None]:
        """The windows for BatchNorm's statistics, by modality; None: those of the base stay.

        Noise would shift them for all windows, so windows of low quality are left out; if hardly any other is
        left, those of the base stay (``clean_norms``).
        """
        clean: dict[str, NDArray[np.bool_] | None] = {}
        for m, name in enumerate(self._net.names):
            use_B = present_BM[:, m] | self._encodes_all(name)
            clean_B = use_B & good_BM[:, m] if self._config.clean_norms else use_B
            clean[name] = None if clean_B.sum() < min(_FEW, use_B.sum()) else clean_B
        return clean

    def _remeasure(
        self,
        name: str,
        x_BCT: Tensor,
        clean_B: NDArray[np.bool_] | None,
        before: Mapping[str, list[Tensor]],
    ) -> None:
        """BatchNorm statistics of a trained encoder, on the windows in the form of inference."""
        if clean_B is None:
            local.restore_norms(self._net.encoders[name], before[name])
            return
        z_BD = self._net.measure_norms(name, x_BCT if clean_B.all() else x_BCT[torch.from_numpy(clean_B)])
        self.measured[name] = np.flatnonzero(clean_B), z_BD.numpy()

    def _encodes_all(self, name: str) -> bool:
        """Whether all windows go through an encoder: with ``zero_input``, if the device has it."""
        return self._config.impute == "zero_input" and name in self._known.encoders

    def batch(self, everything: Batch, index_B: Tensor) -> Batch:
        """The windows of a step, augmented and with modalities dropped."""
        config, known, rng = self._config, self._known, self._generator
        x = {name: x_BCT[index_B] for name, x_BCT in everything.x.items()}
        present_BM = everything.present_BM[index_B]
        x = local.augmented(x, config.rotate_deg, config.gain, known.housings, rng)
        here = dict(zip(known.seen, present_BM.unbind(dim=1), strict=True))
        batch = Batch(
            x=augmentation.apply(known.changes, x, here, rng),
            present_BM=present_BM,
            q_BM=everything.q_BM[index_B],
            y_B=everything.y_B[index_B],
        )
        return self._dropped(batch) if config.modality_dropout else batch

    def _dropped(self, batch: Batch) -> Batch:
        """The batch after modality dropout, which never takes a modality without a replacement."""
        droppable_BM = batch.present_BM
        if self._config.missing_prototype == "wait":
            droppable_BM = droppable_BM & self._known.replaceable(batch.y_B)
        keep_BM = local.kept(batch.present_BM, droppable_BM, self._config.modality_dropout, self._generator)
        q_BM = batch.q_BM
        if self._config.pce_on_incomplete:
            q_BM = q_BM & keep_BM.all(dim=1, keepdim=True)
        x = {
            name: torch.where(keep_BM[:, m, None, None], x_BCT, 0.0)
            for m, (name, x_BCT) in enumerate(batch.x.items())
        }
        return replace(batch, x=x, present_BM=keep_BM, q_BM=q_BM)

    def _step(self, sgd: local.Sgd, batch: Batch) -> tuple[float, int]:
        z = self._completed(batch)
        logits_BK = self._net.classify(z)
        loss = cross_entropy(logits_BK, batch.y_B, self._weight_K)
        low_BM = batch.present_BM & ~batch.q_BM
        if bool(low_BM.any()):  # else (22) adds zeros
            loss = rebalanced(loss, self._pce(z, batch.y_B, low_BM), batch.q_BM.T, self._config.beta)
        sgd.descend(loss)
        return float(loss.detach()), int((logits_BK.argmax(dim=1) == batch.y_B).sum())

    def _completed(self, batch: Batch) -> dict[str, Tensor]:
        """Each modality's ``z_BD``: encoded if it is present, else imputed by ``impute``."""
        config, known = self._config, self._known
        z: dict[str, Tensor] = {}
        for m, name in enumerate(self._net.names):
            here_B = batch.present_BM[:, m]
            encode_B = torch.ones_like(here_B) if self._encodes_all(name) else here_B
            if whole := bool(encode_B.all()):  # the usual case, in which rows need not be copied twice
                self.trained |= {name}
                z_BD = known.scaled(self._net.encode(name, batch.x[name]))
            else:
                z_BD = torch.zeros(len(here_B), known.vbar[name].shape[1])
                if bool(encode_B.any()):
                    self.trained |= {name}
                    z_BD[encode_B] = known.scaled(self._net.encode(name, batch.x[name][encode_B]))
            if whole and (encode_B is here_B or bool(here_B.all())):
                pass
            elif config.impute == "pnr":
                # a class without prototype has a row of zeros: the zero feature
                z_BD = imputed(z_BD, here_B, batch.y_B, known.vbar[name])
            elif config.impute == "mean_feature":
                z_BD = imputed_by_mean(z_BD, here_B, known.vbar[name], known.seen[name])
            z[name] = z_BD
        if config.impute == "pnr_posterior":
            tables = [(known.vbar[name], known.seen[name]) for name in z]
            filled = imputed_by_posterior(list(z.values()), batch.present_BM, *zip(*tables, strict=True))
            return dict(zip(z, filled, strict=True))
        return z

    def _pce(self, z: Mapping[str, Tensor], y_B: Tensor, low_BM: Tensor) -> Tensor:
        """Equation (21) as ``pce_MB``, of the present features with a false q; 0 for the others."""
        pce_MB = torch.zeros(low_BM.T.shape)
        for m, name in enumerate(self._net.names):
            low_B = low_BM[:, m]
            if bool(low_B.any()):
                pce_MB[m, low_B] = prototype_cross_entropy(
                    z[name][low_B], y_B[low_B], self._known.vbar[name], self._known.seen[name]
                )
        return pce_MB


def whole(windows: WindowSet, known: Globals) -> Batch:
    """All windows as tensors."""
    present_BM = torch.from_numpy(windows.present_BM)
    x = {name: torch.from_numpy(np.ascontiguousarray(windows.x[name])) for name in known.seen}
    if not windows.present_BM.all():
        x = {
            name: torch.where(present_BM[:, m, None, None], x_BCT, 0.0)
            for m, (name, x_BCT) in enumerate(x.items())
        }
    return Batch(
        x=x,
        present_BM=present_BM,
        q_BM=torch.from_numpy(known.q(windows)),
        y_B=torch.from_numpy(windows.y_B),
    )
