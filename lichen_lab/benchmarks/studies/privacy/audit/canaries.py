"""The canary test: what versions tell of single devices, against what the account claims. Imports torch.

Every device is a canary: its update has one value other than zero, at a place of its own, ten clips long. So
each canary is as much as a device can be in any version, and thousands are tested in one run. The device's
own code clips and encodes, the coordinator's own code decodes, checks and folds, and adds the noise.

A fair coin decides each canary. Without sampling a device is replaced by another, whose value has the other
sign. With ``poisson`` it is in the fleet or not, and takes part by the coordinator's own sampling. The
attacker knows all that, sees all versions, and scores each canary by its likelihood ratio.
"""

import hashlib
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.selection.poisson import policy_of
from coordinator.selection.policies import SelectionInput
from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.privacy.audit.bounds import bound_of, epsilon_if_normal
from lichen_lab.benchmarks.studies.privacy.audit.coordinator_side import (
    CheckedUpdate,
    CoordinatorSide,
    framed,
)
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import FEDAVG, PrivacyOutcome, PrivacySetting
from models import registry
from models.contract import Blobs, LocalResult, WindowSet
from models.privacy.central_account import CentralAccount
from models.privacy.key_stream import derived_key
from models.privacy.noisy_fold import RoundNoise
from models.tensors import flatten
from protocol.errors import Refused
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task

CLIPS: Final = 10.0
"""Norm of a canary's update before its device clips it."""
_COINS: Final = 503
_WEIGHTS: Final = "head/fc2.weight"
_FURTHEST: Final = 600.0
"""Exponents beyond it count as it: the order of scores is all that matters."""


@dataclass
class CanaryFleet:
    """The canaries' devices and their coordinator.

    Attributes:
        task: with the table that is claimed.
        material: windows of a device.
        names: of the canaries; each has the value at its place in this order.
        in_M: which of two each canary is, (M,).
        key: from which the noise follows.
        device_clips: whether devices have the code that clips.
        coordinator_checks: whether the coordinator has the code that checks the norm.
        noise_share: how much of the claimed noise there is.
        refused: number of refused updates.
    """

    task: Task
    material: WindowSet
    names: tuple[str, ...]
    in_M: NDArray[np.bool_]
    key: bytes
    device_clips: bool = True
    coordinator_checks: bool = True
    noise_share: float = 1.0
    refused: int = 0

    def __post_init__(self) -> None:
        state = registry.method(self.task.method).client().initial(self.task, self.task.seed)
        self._coordinator = CoordinatorSide.of(self.task, state)

    @property
    def privacy(self) -> Privacy:
        """The table that is claimed."""
        if self.task.privacy is None:
            raise ValueError("a canary test of a task without a table [privacy]")
        return self.task.privacy

    def round(self, round_: int) -> NDArray[np.float64]:
        """Play a round; the sum of the updates as the new version tells it, in clips, (M,)."""
        received = [one for place in self._sample(round_) if (one := self._delivered(place, round_))]
        made = self.privacy.noise_multiplier * self.noise_share
        noisy = self.privacy.model_copy(update={"noise_multiplier": made})
        noise = RoundNoise(noisy, derived_key(self.key, ("round", str(round_))))
        before = self._coordinator.state
        after = self._coordinator.folded(round_, received, noise, self._checked)
        self._coordinator = self._coordinator.at(after)
        moved_M = (_weights(after) - _weights(before))[: len(self.names)]
        return moved_M * self.privacy.divisor(len(received)) / self.privacy.clip

    def _sample(self, round_: int) -> list[int]:
        """Places of the canaries that take part in a round."""
        if self.privacy.rate is None:
            return list(range(len(self.names)))
        here = {self.names[place]: place for place in np.flatnonzero(self.in_M).tolist()}
        salt = hashlib.sha256(self.key + round_.to_bytes(4, "big")).digest()
        draw = SelectionInput({name: {} for name in here}, None, int.from_bytes(salt[:4], "big"))
        return [here[name] for name in policy_of(self.task).choose(draw).devices]

    @property
    def parameters(self) -> int:
        """Values of the model."""
        return sum(tensor.size for tensor in flatten(self._coordinator.state).values())

    @property
    def _checked(self) -> Privacy | None:
        return self.privacy if self.coordinator_checks else None

    def _delivered(self, place: int, round_: int) -> CheckedUpdate | None:
        """A canary's update, through the device's code and the checks on arrival; None: refused."""
        task = self.task if self.device_clips else self.task.model_copy(update={"privacy": None})
        tensors = {name: np.zeros_like(tensor) for name, tensor in flatten(self._coordinator.state).items()}
        sign = 1.0 if self.in_M[place] else -1.0
        tensors[_WEIGHTS].reshape(-1)[place] = sign * CLIPS * self.privacy.clip
        name = self.names[place]
        frame = framed(task, name, round_, self.material, LocalResult(tensors))
        try:
            return self._coordinator.received(name, frame, self._checked)
        except Refused:
            self.refused += 1
            return None


def _weights(state: Blobs) -> NDArray[np.float64]:
    return flatten(state)[_WEIGHTS].reshape(-1).astype(np.float64)


def task_of(task: Task, setting: PrivacySetting, canaries: int) -> Task:
    """The task of a canary test; a rate of 1 is no sampling.

    Args:
        task: names of values and classes.
        setting: the protection.
        canaries: their number; of those in the fleet it is twice the expected one.
    """
    sampled = {"sampling": "poisson", "rate": setting.rate, "devices": max(1, canaries // 2)}
    privacy = {
        "clip": setting.clip,
        "noise_multiplier": setting.noise_multiplier,
        "delta": setting.delta,
        **(sampled if setting.rate < 1 else {}),
    }
    changes = {"method": FEDAVG, "privacy": Privacy.model_validate(privacy), "config": {"weigh_by": "equal"}}
    return task.model_copy(update=changes)


def audit(fleet: PrivacyFleet, setting: PrivacySetting, seed: int, tell: Say) -> PrivacyOutcome:
    """Make a run: bounds of epsilon after all rounds, beside the account's.

    Raises:
        Misconfigured: the accountant's package is not installed.
    """
    began = time.process_time()
    canaries = _fleet_of(fleet, setting, seed)
    score_M = np.zeros(len(canaries.names))
    for round_ in range(1, setting.rounds + 1):
        score_M += _scores(canaries.round(round_), canaries)
        tell(f"round {round_} of {setting.rounds}")
    account = CentralAccount.after(canaries.privacy, setting.rounds)
    attack = {"bound": bound_of(score_M, canaries.in_M, setting.delta)}
    if setting.rate >= 1 and 0 < canaries.in_M.mean() < 1:
        attack["bound_if_normal"] = epsilon_if_normal(score_M, canaries.in_M, 0.0, setting.delta)
    return PrivacyOutcome(
        epsilon=account.epsilon,
        epsilon_of_seen=account.epsilon_of_seen,
        devices=len(canaries.names),
        parameters=canaries.parameters,
        refused=canaries.refused,
        attack=attack,
        seconds=time.process_time() - began,
    )


def _fleet_of(fleet: PrivacyFleet, setting: PrivacySetting, seed: int) -> CanaryFleet:
    names = tuple(fleet.devices)
    return CanaryFleet(
        task_of(fleet.task, setting, len(names)),
        fleet.devices[names[0]],
        names,
        np.random.default_rng((seed, _COINS)).integers(0, 2, len(names)).astype(np.bool_),
        hashlib.sha256(f"noise of canaries {seed}".encode()).digest(),
        **setting.config,
    )


def _scores(sum_M: NDArray[np.float64], canaries: CanaryFleet) -> NDArray[np.float64]:
    """The logarithm of each canary's likelihood ratio in one round; (M,) of the sum in clips."""
    privacy = canaries.privacy
    length = 1.0 if canaries.device_clips else CLIPS
    variance = privacy.sum_multiplier**2
    if privacy.rate is None:
        return 2 * length * sum_M / variance
    log_ratio_M = np.minimum((2 * length * sum_M - length**2) / (2 * variance), _FURTHEST)
    scores_M: NDArray[np.float64] = np.log1p(privacy.rate * np.expm1(log_ratio_M))
    return scores_M
