"""QQR's local training: PNR, and the loss of (20) to (22). Imports torch.

Shapes: B windows of a step, N of the round, M modalities, D features, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.contract import FloatArray, WindowSet
from models.methods.qqr import QqrConfig
from models.methods.qqr.local_rounds import WHATEVER_THE_CLASS
from models.methods.qqr.losses import (
    imputed,
    imputed_by_mean,
    imputed_by_posterior,
    prototype_cross_entropy,
    rebalanced,
)
from models.methods.qqr.prototyper import high_quality
from models.multimodal.network import MultimodalNetwork
from models.multimodal.prototypes import normalise
from models.training.supervised import Batch, Chosen, SupervisedTraining, TrainingTask
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
        about: what the task says about training.
    """

    encoders: frozenset[str]
    vbar: Mapping[str, Tensor]
    seen: Mapping[str, Tensor]
    config: QqrConfig
    about: TrainingTask

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
        made = cls(encoders, {}, seen, config, TrainingTask.of(task, config))
        vbar = {name: made.scaled(torch.from_numpy(tables[name][0])) for name in task.modality_names}
        return replace(made, vbar=vbar)

    def scaled(self, z: Tensor) -> Tensor:
        """A feature or prototype at its set length; unchanged when ``normalise`` is off."""
        return normalise(z, self.config.feature_scale) if self.config.normalise else z

    def high_quality(self, quality_BM: FloatArray) -> NDArray[np.bool_]:
        """The q of (14): all true when quality is not read."""
        return high_quality(quality_BM, self.config)

    def replaceable(self, y_B: Tensor) -> Tensor:
        """Whether each (window, modality) could be imputed if it is missing, (B, M)."""
        if self.config.impute == "pnr":
            return torch.stack([seen_K[y_B] for seen_K in self.seen.values()], dim=1)
        if self.config.impute in WHATEVER_THE_CLASS:
            return torch.stack([seen_K.any().expand(len(y_B)) for seen_K in self.seen.values()], dim=1)
        return torch.ones(len(y_B), len(self.seen), dtype=torch.bool)


class LocalTraining(SupervisedTraining):
    """One device's training in one round, on ``net`` in place, with PNR and PLR."""

    def __init__(
        self, net: MultimodalNetwork, known: Globals, config: QqrConfig, generator: torch.Generator
    ) -> None:
        super().__init__(net, known.about, config, generator)
        self._known = known
        self._config = config
        self._high_NM = torch.zeros(0, len(net.names), dtype=torch.bool)

    def run(self, windows: WindowSet, round_: int) -> dict[str, float]:
        """All epochs; the metrics of the last one."""
        high_BM = self._known.high_quality(windows.quality_BM)
        self._high_NM = torch.from_numpy(high_BM)
        low_B = (windows.present_BM & ~high_BM).any(axis=1)
        return super().run(windows, round_) | {"low_quality": float(low_B.sum())}

    def chosen_for_norms(self, windows: WindowSet) -> Chosen:
        """The windows that BatchNorm's statistics are measured on; None: those of the base stay.

        Noise would shift them for all windows, so windows of low quality are left out; if hardly any other is
        left, those of the base stay (``clean_norms``).
        """
        good_BM = self._known.high_quality(windows.quality_BM)
        clean: Chosen = {}
        for m, name in enumerate(self._net.names):
            use_B = windows.present_BM[:, m] | self._encodes_all(name)
            clean_B = use_B & good_BM[:, m] if self._config.clean_norms else use_B
            clean[name] = None if clean_B.sum() < min(_FEW, use_B.sum()) else clean_B
        return clean

    def droppable(self, batch: Batch) -> Tensor:
        """Modality dropout never takes a modality without a replacement, if windows wait for that."""
        if self._config.missing_prototype == "wait":
            return batch.present_BM & self._known.replaceable(batch.y_B)
        return batch.present_BM

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Each modality's ``z_BD``: encoded if it is present, else imputed by ``impute``."""
        config, known = self._config, self._known
        z: dict[str, Tensor] = {}
        for m, name in enumerate(self._net.names):
            here_B = batch.present_BM[:, m]
            encode_B = torch.ones_like(here_B) if self._encodes_all(name) else here_B
            z_BD = self.encoded(name, batch.x[name], encode_B)
            if bool(here_B.all()):
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

    def loss(self, batch: Batch, z: Mapping[str, Tensor], logits_BK: Tensor) -> Tensor:
        """Equation (20), and (22) for the features that are pulled towards their prototypes."""
        loss = super().loss(batch, z, logits_BK)
        q_BM = self._high_NM[batch.at_B]
        if self._config.pce_on_incomplete:
            q_BM = q_BM & batch.present_BM.all(dim=1, keepdim=True)
        low_BM = batch.present_BM & ~q_BM
        if not bool(low_BM.any()):  # (22) would add zeros
            return loss
        return rebalanced(loss, self._pce(z, batch.y_B, low_BM), q_BM.T, self._config.beta)

    def _encodes_all(self, name: str) -> bool:
        """Whether all windows go through an encoder: with ``zero_input``, if the device has it."""
        return self._config.impute == "zero_input" and name in self._known.encoders

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
