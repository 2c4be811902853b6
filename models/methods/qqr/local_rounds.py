"""``model_every``: a device's own weights between the rounds in which model deltas are sent. Torch-free.

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

from models.contract import Blobs, FloatArray, Tensors
from models.methods.qqr import QqrConfig
from models.tensors import flatten, unflatten
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
