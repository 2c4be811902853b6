"""Limits of a device's account, and whether one more training is within them. Pure.

The agent and a simulated device decide by the same code.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from models.privacy.device_account import DeviceAccount
from models.privacy.local.training_plan import TrainingPlan
from models.training.supervised_options import SupervisedConfig
from protocol.tasks.task import Task

SLACK: Final = 1 + 1e-4
"""Rhos are stored as float32, rounded up."""


@dataclass(frozen=True)
class Limit:
    """No stretch of the streams may cost more.

    Attributes:
        epsilon: at most.
        delta: of it.
        stretch_s: length of the stretch; 0: a moment.
        key: that sets it.
    """

    epsilon: float
    delta: float
    stretch_s: float
    key: str


def limits_of(task: Task) -> tuple[Limit, ...]:
    """The limit that the task sets, if any."""
    local = task.local_privacy
    if local is None or local.max_epsilon is None:
        return ()
    return (Limit(local.max_epsilon, local.delta, 0.0, "local_privacy.max_epsilon of the task"),)


def with_training(
    account: DeviceAccount, store: str, task: Task, config: object, windows: int
) -> DeviceAccount:
    """The account after one more training under ``[local_privacy]``, with a method's options.

    A method whose options have no batch counts as one without noise.
    """
    charge = {}
    if isinstance(config, SupervisedConfig):
        charge = TrainingPlan.of(config.batch, config.epochs, windows).charge()
    return account.after(store, task, charge, noised=True)


def excess(task: Task, after: DeviceAccount, limits: Iterable[Limit]) -> str:
    """Which limit an account with one more update of a task exceeds, in words; empty: none."""
    for limit in limits:
        found = after.of_stretch(limit.stretch_s).epsilon(limit.delta)
        if found <= limit.epsilon * SLACK:
            continue
        bare = ", ".join(after.without_noise)
        reached = f"epsilon {found:.3g} at delta {limit.delta:g}"
        reached += f" ({bare} sent without noise)" if bare else ""
        return (
            f"task {task.name!r}: one more update would take {stretch_words(limit.stretch_s)} to {reached} "
            f"over all tasks; at most {limit.epsilon:g} is allowed ({limit.key})"
        )
    return ""


def stretch_words(stretch_s: float) -> str:
    """The unit of a limit."""
    return f"a stretch of {stretch_s:g} s of the streams" if stretch_s else "a moment of the streams"
