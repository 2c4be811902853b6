"""FedBN: the norms that a device keeps for itself, and their use in its own predictions. Torch-free.

A device begins a round with the fleet's model and its own norms, and predicts with these, too. Until it has
trained an encoder for the first time it has none of that encoder: then the fleet's stand for them.
"""

from collections.abc import Mapping

import numpy as np

from models.contract import Blobs, FloatArray, Tensors
from models.methods.fedavg import FedAvgConfig
from models.tensors import NEVER_NEGATIVE, batch_norms, flatten


def norms_to_keep(config: FedAvgConfig, private: Mapping[str, FloatArray], trained: Tensors) -> Tensors:
    """The norms to store after a round: those just trained, and the stored ones of other encoders.

    Args:
        config: the task's options.
        private: stored before.
        trained: by wire name, values (not deltas).
    """
    if config.private_norms == "none":
        return {}
    both = {**private, **trained}
    return {name: both[name] for name in sorted(batch_norms(both))}


def tensors_to_send(config: FedAvgConfig, trained: Tensors) -> Tensors:
    """The trained tensors that leave the device."""
    if config.private_norms != "strict":
        return trained
    norms = batch_norms(trained)
    return {name: tensor for name, tensor in trained.items() if name not in norms}


def blended(config: FedAvgConfig, state: Blobs, private: Mapping[str, FloatArray]) -> Blobs:
    """The state with the device's own norms; see :meth:`models.spec.MethodSpec.blended`.

    An encoder whose norms the device lacks, or has in other shapes (the network has changed), keeps the
    fleet's.
    """
    if config.private_norms == "none":
        return state
    new = dict(state)
    norms = batch_norms(flatten(state))
    for blob, tensors in state.items():
        names = norms & tensors.keys()
        if names and all(_fits(private, name, tensors[name]) for name in names):
            new[blob] = {name: private[name] if name in names else tensors[name] for name in tensors}
    return new


def _fits(private: Mapping[str, FloatArray], name: str, tensor: FloatArray) -> bool:
    own = private.get(name)
    if own is None or own.shape != tensor.shape or not np.isfinite(own).all():
        return False
    return not (name.endswith(NEVER_NEGATIVE) and bool((own < 0).any()))
