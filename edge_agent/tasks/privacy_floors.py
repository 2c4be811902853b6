"""The minimal privacy that the device's owner sets; no task can lower it. Pure."""

from edge_agent.config.agent import LearnSettings
from edge_agent.config.privacy import PrivacySettings
from models import registry
from models.privacy.account import epsilon_of, overlap, rho_of, span_of
from models.privacy.local.limits import SLACK, stretch_words
from protocol.errors import Misconfigured
from protocol.tasks.task import Task


class Unprotected(Misconfigured):
    """A task protects this device less than its owner asks for: it gets nothing."""


def require_protected(task: Task, floors: PrivacySettings) -> None:
    """Check that the task's table ``[privacy]`` meets this device's floors.

    Raises:
        Unprotected: it does not; the message names the key.
    """
    privacy, name = task.privacy, f"task {task.name!r}"
    if privacy is None:
        asked = {
            "consent": floors.consent == "protected",
            "min_noise_multiplier": floors.min_noise_multiplier > 0,
            "max_epsilon": floors.max_epsilon is not None,
            "max_clip": floors.max_clip is not None,
        }
        if key := next((key for key, value in asked.items() if value), ""):
            raise Unprotected(f"{name} has no table [privacy]; this device asks for one (privacy.{key})")
        return
    if privacy.noise_multiplier < floors.min_noise_multiplier:
        raise Unprotected(
            f"{name}: privacy.noise_multiplier is {privacy.noise_multiplier:g}; this device asks for "
            f"{floors.min_noise_multiplier:g} (privacy.min_noise_multiplier)"
        )
    for key, most in (("max_epsilon", floors.max_epsilon), ("clip", floors.max_clip)):
        value = getattr(privacy, key)
        if most is not None and (value is None or value > most):
            shown = "not set" if value is None else f"{value:g}"
            ours = f"privacy.max_{key.removeprefix('max_')}"
            raise Unprotected(f"{name}: privacy.{key} is {shown}; this device allows {most:g} ({ours})")


def noise_of(task: Task) -> float:
    """The noise that devices add for this task; 0: none.

    Raises:
        Misconfigured: its options are wrong.
    """
    spec = registry.method(task.method)
    config = spec.configure(task)
    return spec.noise(config) if task.local_privacy is None else task.local_privacy.noise_multiplier


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
    if task.local_privacy is not None:
        return  # by the number of windows: the account decides before each training
    times = overlap(span_of(task), task.window.stride_s, learn.stretch_s) ** 2 * len(task.modality_names)
    once = epsilon_of(times * rho_of(noise), learn.dp_delta)
    if once > learn.max_epsilon * SLACK:
        raise Misconfigured(
            f"{prefix}: a single round takes {stretch_words(learn.stretch_s)} to epsilon {once:.3g} at delta "
            f"{learn.dp_delta:g}; this device allows {learn.max_epsilon:g} (learn.max_epsilon)"
        )
