"""The minimal privacy that the device's owner sets; no task can lower it. Pure."""

from typing import Final

from edge_agent.config.agent import LearnSettings
from models import registry
from models.privacy.account import epsilon_of, overlap, rho_of, span_of
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

SLACK: Final = 1 + 1e-4
"""Rhos are stored as float32, rounded up."""


def noise_of(task: Task) -> float:
    """The noise that devices add for this task; 0: none.

    Raises:
        Misconfigured: its options are wrong.
    """
    spec = registry.method(task.method)
    return spec.noise(spec.configure(task))


def require_private(task: Task, learn: LearnSettings) -> None:
    """Check that the task meets this device's minimal privacy.

    Raises:
        Misconfigured: it does not; the message names the key.
    """
    noise = noise_of(task)
    prefix = f"task {task.name!r} adds noise of {noise:g} to what devices send" if noise else ""
    prefix = prefix or f"task {task.name!r} adds no noise to what devices send"
    if noise < learn.min_dp_noise:
        raise Misconfigured(f"{prefix}; this device asks for {learn.min_dp_noise:g} (learn.min_dp_noise)")
    if learn.max_epsilon is None:
        return
    if not noise:
        raise Misconfigured(
            f"{prefix}, so epsilon has no bound; this device allows {learn.max_epsilon:g} (learn.max_epsilon)"
        )
    times = overlap(span_of(task), task.window.stride_s) ** 2 * len(task.modality_names)
    once = epsilon_of(times * rho_of(noise), learn.dp_delta)
    if once > learn.max_epsilon * SLACK:
        raise Misconfigured(
            f"{prefix}: a single round takes a moment of the streams to epsilon {once:.3g} at delta "
            f"{learn.dp_delta:g}; this device allows {learn.max_epsilon:g} (learn.max_epsilon)"
        )
