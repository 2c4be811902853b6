"""The tensors that a device keeps for itself, and their use in its own predictions. NumPy only.

``last_layer = "private"``: each decoder's last layer is the device's own, and never leaves it. ``"both"``: so
it is, and a second one is the fleet's. ``"interpolated"``: it is sent, and the device predicts with a blend.
``own_share``: likewise all the other weights. ``aggregate = "kd"``: all weights are its own; the fleet shares
features alone.
"""

from collections.abc import Mapping

import numpy as np

from models.contract import Blobs, FloatArray, Tensors
from models.methods.disentafl import METHOD, DisentAflConfig


def share_of_own(config: DisentAflConfig, part: str) -> float:
    """Weight of what the device keeps of a part, against the fleet's, in its own predictions."""
    if config.aggregate == "kd":
        return 1.0
    if part != "last":
        return config.own_share
    if config.last_layer == "interpolated":
        return config.last_share
    return 0.0 if config.last_layer == "shared" else 1.0


def begun(config: DisentAflConfig, state: Blobs, private: Mapping[str, FloatArray]) -> Blobs:
    """The state that training begins with: :func:`blended`, but an interpolated last layer is the fleet's."""
    return _mixture(config, state, private, {"last"} if config.last_layer == "interpolated" else set())


def kept(config: DisentAflConfig, private: Mapping[str, FloatArray], trained: Tensors) -> Tensors:
    """What of this round's training the device keeps, with what it kept before and did not train now.

    Args:
        config: the task's options.
        private: what was kept before: a target or domain that comes back finds its own again.
        trained: by wire name, values (not deltas).
    """
    parts = METHOD.personal(config)
    both = {**private, **trained}
    return {name: tensor for name, tensor in both.items() if name.split("/", 1)[0] in parts}


def blended(config: DisentAflConfig, state: Blobs, private: Mapping[str, FloatArray]) -> Blobs:
    """The state that the device's own predictions use; see :meth:`models.spec.MethodSpec.blended`.

    ``own' = share * own + (1 - share) * global``, tensor by tensor. A blob that the device has not trained,
    or has in other shapes (the task has changed), stays global.
    """
    return _mixture(config, state, private, set())


def _mixture(
    config: DisentAflConfig, state: Blobs, private: Mapping[str, FloatArray], but: set[str]
) -> Blobs:
    parts, new = set(METHOD.personal(config)) - (but if config.aggregate == "avg" else set()), dict(state)
    for blob, tensors in state.items():
        part = blob.split("/", 1)[0]
        if part in parts and all(_fits(private, name, t) for name, t in tensors.items()):
            share = np.float32(share_of_own(config, part))
            new[blob] = {name: _mixed(share, private[name], tensor) for name, tensor in tensors.items()}
    return new


def _mixed(share: np.float32, own: FloatArray, ours: FloatArray) -> FloatArray:
    return own if share == 1 else np.asarray(share * own + (1 - share) * ours, np.float32)


def _fits(private: Mapping[str, FloatArray], name: str, tensor: FloatArray) -> bool:
    return name in private and private[name].shape == tensor.shape and bool(np.isfinite(private[name]).all())
