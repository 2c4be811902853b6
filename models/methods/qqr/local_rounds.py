"""The windows of a device's round; and ``model_every``: its own weights between sending rounds. Torch-free.

In a round between, the fleet's model does not move, only its prototypes do. So a device that goes on from its
own weights has, after n such rounds, a delta against a base that is still the fleet's: in the next
sending round it sends ``own - base`` of that round, n rounds of work in one delta, quantized once. The error
carry stays what it was in the rounds between (its tensors are not sent) and is added to that one delta.

Own weights are good for one base only, so its fingerprint is stored with them:

- the base has moved (a sending round closed, with or without this device's delta; it was away for some
  rounds): they are dropped, and the device begins from the base, like a new one;
- the base has not moved (a round between; a sending round that was abandoned, or that no model reached):
  it continues from them;
- the same round trained twice (its update was lost before it was spooled): a device cut off before its own
  weights were written begins from the former ones and gives the same bytes; later, it trains one round more.
  Either way the delta is against the base that it was trained from.

A device that lost them (a damaged file), or whose training diverged, begins from the base: its work since the
last sending round is lost.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, ClientContext, FloatArray, Tensors, WindowSet
from models.methods.qqr import QqrConfig
from models.tensors import flatten, unflatten
from models.training import usable_windows
from models.training.usable_windows import nothing_to_learn
from protocol.tasks.task import Task

_PREFIX: Final = "between/"
_BASE: Final = f"{_PREFIX}base"
_ROUNDS: Final = f"{_PREFIX}rounds"


def model_travels(task: Task, config: QqrConfig, round_: int) -> bool:
    """Whether model deltas are sent in this round: every ``model_every``-th, and the task's last."""
    return round_ % config.model_every == 0 or round_ == task.rounds.count


@dataclass(frozen=True)
class OwnWeights:
    """The weights that a device has trained since the fleet's model last moved.

    Attributes:
        tensors: by wire name, the head and the encoders trained since; empty: nothing yet.
        rounds: how many local rounds are in them.
    """

    tensors: Tensors
    rounds: int = 0

    @classmethod
    def of(cls, state: Blobs, private: Mapping[str, FloatArray]) -> "OwnWeights":
        """The weights in ``private``, if they were trained from this base, fit it and are finite."""
        base = private.get(_BASE)
        if base is None or not np.array_equal(base, _fingerprint(state)):
            return cls({})
        model = flatten(_model(state))
        own = {
            name.removeprefix(_PREFIX): tensor
            for name, tensor in private.items()
            if name.startswith(_PREFIX) and name not in {_BASE, _ROUNDS}
        }
        fits = all(name in model and model[name].shape == tensor.shape for name, tensor in own.items())
        if not fits or not all(np.isfinite(tensor).all() for tensor in own.values()):
            return cls({})
        return cls(own, int(private.get(_ROUNDS, np.zeros(1)).sum()))

    @property
    def trained(self) -> frozenset[str]:
        """Modalities whose encoder is among them."""
        parts = (name.split("/") for name in self.tensors)
        return frozenset(part[1] for part in parts if part[0] == "encoder")

    def over(self, state: Blobs) -> Blobs:
        """The state that training begins from."""
        return unflatten(flatten(state) | self.tensors) if self.tensors else state

    def kept(self, state: Blobs) -> Tensors:
        """For ``LocalResult.private``."""
        if not self.tensors:
            return {}
        named = {f"{_PREFIX}{name}": tensor for name, tensor in self.tensors.items()}
        return named | {_BASE: _fingerprint(state), _ROUNDS: np.array([self.rounds], np.float32)}


def _model(state: Blobs) -> Blobs:
    return {name: blob for name, blob in state.items() if name.split("/")[0] in {"encoder", "head"}}


def _fingerprint(state: Blobs) -> FloatArray:
    """SHA-256 of the model's tensors on the device's route, (32,): a byte each, exact in float32."""
    seen = hashlib.sha256()
    for name, tensor in flatten(_model(state)).items():
        seen.update(f"{name}\0{tensor.shape}\0".encode())
        seen.update(np.ascontiguousarray(tensor, np.float32).tobytes())
    return np.frombuffer(seen.digest(), np.uint8).astype(np.float32)


WHATEVER_THE_CLASS: Final = frozenset({"pnr_posterior", "mean_feature"})
"""Ways to impute that need a prototype of any class, not that of the window's."""
Seen = Mapping[str, NDArray[np.bool_]]


def usable(
    context: ClientContext,
    windows: WindowSet,
    encoders: frozenset[str],
    seen: Seen,
    config: QqrConfig,
) -> tuple[WindowSet, NDArray[np.bool_], dict[str, float]]:
    """The labelled windows that count, which of them train ``(B,)``, and counts of the others.

    A modality without an encoder on the device counts as missing in all windows. A window that waits for a
    prototype (PNR) does not train, but its present modalities give prototypes.

    Args:
        context: of the round.
        windows: of the device.
        encoders: modalities that this device has an encoder for.
        seen: which classes have a global prototype, by modality.
        config: the method's options.

    Raises:
        Transient: there is no window to learn from.
    """
    complete = config.impute == "complete_only"
    used, metrics = usable_windows.usable(context, windows, encoders, complete=complete)
    waits_B = _waiting(seen, context.task.modality_names, used, config)
    metrics["windows"] = float((~waits_B).sum())
    metrics["waiting"] = float(waits_B.sum())
    metrics["imputed"] = float((~used.present_BM[~waits_B]).any(axis=1).sum())
    if not len(used):
        raise nothing_to_learn(context, metrics)
    return used, ~waits_B, metrics


def _waiting(seen: Seen, names: tuple[str, ...], windows: WindowSet, config: QqrConfig) -> NDArray[np.bool_]:
    """PNR: the windows that lack a modality without a prototype to impute it, and wait if so configured."""
    waits_B = np.zeros(len(windows), np.bool_)
    if config.missing_prototype == "wait":
        for m, name in enumerate(names):
            has_prototype_K = seen[name]
            if config.impute == "pnr":
                waits_B |= ~windows.present_BM[:, m] & ~has_prototype_K[windows.y_B]
            elif config.impute in WHATEVER_THE_CLASS and not has_prototype_K.any():
                waits_B |= ~windows.present_BM[:, m]
    return waits_B
