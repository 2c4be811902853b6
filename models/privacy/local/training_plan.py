"""How a device samples its windows under ``[local_privacy]``, and what that promises. Torch-free."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from models.contract import FloatArray, Tensors
from models.privacy.account import PREFIX, overlap, span_of
from models.privacy.local.renyi import Spending, sampled_gaussian
from protocol.tasks.folding import LocalPrivacy
from protocol.tasks.task import Task

TRAINED: Final = f"{PREFIX}training"
"""The charge of a training among a method's private tensors."""
_DIGITS: Final = 2
_MAX_STEPS: Final = 1 << 24
"""Above, float32 does not hold every number."""


@dataclass(frozen=True)
class TrainingPlan:
    """The steps of one round.

    Attributes:
        rate: probability that a step takes a window; has two digits, so that an account has few of them.
        steps: of the round.
    """

    rate: float
    steps: int

    @classmethod
    def of(cls, batch: int, epochs: int, windows: int) -> "TrainingPlan":
        """For so many windows that train, one or more: ``batch`` of them a step on average, or a few more."""
        return cls(_rounded_up(min(1.0, batch / windows)), epochs * math.ceil(windows / batch))

    @classmethod
    def within(cls, private: Mapping[str, FloatArray]) -> "TrainingPlan | None":
        """The one that :meth:`charge` wrote; None: there is none, or it is none."""
        found = private.get(TRAINED)
        if found is None or found.shape != (2,) or not np.isfinite(found).all():
            return None
        rate, steps = _rounded_up(float(found[0])), int(found[1])
        return cls(rate, steps) if 0 < rate <= 1 and 0 < steps <= _MAX_STEPS else None

    def charge(self) -> Tensors:
        """For ``LocalResult.private``."""
        return {TRAINED: np.array([self.rate, self.steps], np.float32)}

    def spending(self, noise: float, windows: int) -> Spending:
        """What the round costs so many windows that may all be empty at once."""
        return Spending(curve=sampled_gaussian(noise, self.rate, self.steps, windows))


def _rounded_up(rate: float) -> float:
    """To two digits."""
    if not 0 < rate < 1:
        return rate
    unit = 10.0 ** (math.floor(math.log10(rate)) + 1 - _DIGITS)
    return min(1.0, float(f"{math.ceil(rate / unit - 1e-4) * unit:.{_DIGITS}g}"))


def promise_words(task: Task, local: LocalPrivacy, plan: TrainingPlan, windows: int) -> str:
    """What a device with so many windows promises after all rounds of a task, if it takes part in each."""
    together = overlap(span_of(task), task.window.stride_s)
    rounds = task.rounds.count
    per_round = plan.spending(local.noise_multiplier, 1), plan.spending(local.noise_multiplier, together)
    window, moment = (_times(one, rounds).epsilon(local.delta) for one in per_round)
    words = (
        f"a device that takes part in all {rounds} rounds with {windows} windows: epsilon {window:.3g} at "
        f"delta {local.delta:g} for one window, {moment:.3g} for one moment of its streams (in up to "
        f"{together} windows); more windows make it smaller"
    )
    if local.max_epsilon is not None and moment > local.max_epsilon:
        fitting = _fitting(per_round[1], local.max_epsilon, local.delta, rounds)
        words += f"; max_epsilon = {local.max_epsilon:g} ends its part after {fitting} of them"
    return words


def _times(one: Spending, rounds: int) -> Spending:
    return Spending(curve=None if one.curve is None else one.curve * rounds)


def _fitting(one: Spending, most: float, delta: float, rounds: int) -> int:
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _times(one, middle).epsilon(delta) <= most else (low, middle)
    return low
