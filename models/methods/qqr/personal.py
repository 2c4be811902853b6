"""The tensors that a device keeps for itself, and their use in its own predictions. Torch-free.

The paper has one model for all. Here a device may store, under their wire names, its trained head and its own
prototypes; at inference they are blended with the global ones. Its updates, and the start of its next round,
are the same as without: personalisation costs the fleet nothing.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, FloatArray, Tensors
from models.methods.qqr import QqrConfig
from models.methods.qqr.prototypes import blob_name, cumulative, rounds_name, values_name
from protocol.tasks.task import Task

Means = Mapping[str, tuple[FloatArray, NDArray[np.int64]]]
"""By modality, a device's ``v_KD`` of this round (13) and ``count_K``, 0 where it has none."""


def keeps_head(config: QqrConfig) -> bool:
    """Whether the device's own predictions blend in its own head."""
    return config.personal in {"head", "both"}


def keeps_prototypes(config: QqrConfig) -> bool:
    """Whether the device's own predictions blend in its own prototypes."""
    return config.personal in {"prototypes", "both"}


def kept_head(config: QqrConfig, private: Mapping[str, FloatArray], trained: Tensors) -> Tensors:
    """The head after this round's training; the stored one if nothing trained.

    Args:
        config: the task's options; nothing is stored unless they say so.
        private: the stored tensors of earlier rounds.
        trained: by wire name, the trained tensors.
    """
    if not keeps_head(config):
        return {}
    kept = {name: tensor for name, tensor in trained.items() if name.startswith("head/")}
    return kept or {name: tensor for name, tensor in private.items() if name.startswith("head/")}


def kept_prototypes(
    task: Task, config: QqrConfig, private: Mapping[str, FloatArray], means: Means
) -> Tensors:
    """The device's own cumulative prototypes after this round, by the rule of the global ones (16).

    Nothing, unless the task's config says that devices keep their own.

    Args:
        task: names and shapes.
        config: the task's options.
        private: those of the rounds before, if any; of other shapes (the task has changed) they are dropped.
        means: of this round's windows: neither quantized nor noised, they stay here.
    """
    if not keeps_prototypes(config):
        return {}
    shape = (len(task.labels), task.network.feature_dim)
    own: Tensors = {}
    for name in task.modality_names:
        before = private.get(values_name(name)), private.get(rounds_name(name))
        values_KD, rounds_K = before
        if values_KD is None or rounds_K is None or values_KD.shape != shape or rounds_K.shape != shape[:1]:
            values_KD, rounds_K = np.zeros(shape, np.float32), np.zeros(shape[0], np.float32)
        if name in means:
            v_KD, count_K = means[name]
            values_KD, rounds_K = cumulative(values_KD, rounds_K, v_KD, count_K > 0, config)
        own |= {values_name(name): values_KD, rounds_name(name): rounds_K}
    return own


def blended(config: QqrConfig, state: Blobs, private: Mapping[str, FloatArray]) -> Blobs:
    """The state for the device's own predictions.

    ``own' = personal_share * own + (1 - personal_share) * global``, tensor by tensor for the head, class by
    class for prototypes: if only one of the two has a prototype, that one counts alone. Tensors that the
    device lacks, or has in another shape (the network has changed), stay global.
    """
    new = dict(state)
    share = np.float32(config.personal_share)
    head = state.get("head", {}) if keeps_head(config) else {}
    if head and all(_fits(private, name, tensor) for name, tensor in head.items()):
        new["head"] = {name: _mixed(share, private[name], tensor) for name, tensor in head.items()}
    if keeps_prototypes(config):
        for blob, tensors in state.items():
            fits = all(_fits(private, name, tensor) for name, tensor in tensors.items())
            if blob.split("/")[0] == "prototypes" and fits:
                new[blob] = _blended_table(share, blob.removeprefix(blob_name("")), tensors, private)
    return new


def _blended_table(
    share: np.float32, modality: str, tensors: Tensors, private: Mapping[str, FloatArray]
) -> Tensors:
    values, rounds = values_name(modality), rounds_name(modality)
    own_K, global_K = private[rounds] > 0, tensors[rounds] > 0
    share_K1 = np.where(own_K, np.where(global_K, share, 1), 0).astype(np.float32)[:, None]
    return {
        values: _mixed(share_K1, private[values], tensors[values]),
        rounds: np.maximum(private[rounds], tensors[rounds]),
    }


def _mixed(share: np.float32 | FloatArray, own: FloatArray, ours: FloatArray) -> FloatArray:
    return np.asarray(share * own + (1 - share) * ours, np.float32)


def _fits(private: Mapping[str, FloatArray], name: str, tensor: FloatArray) -> bool:
    return name in private and private[name].shape == tensor.shape
