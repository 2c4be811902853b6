"""Which roles this device can take; checks for the needed packages without importing them."""

import importlib.util
from functools import cache

from edge_agent.config.agent import AgentSettings, LearnSettings
from edge_agent.config.privacy import PrivacySettings
from protocol.messages import Role
from protocol.tasks.network import LINEAR
from protocol.tasks.task import Task

_NEEDS_TORCH = LearnSettings().module


@cache
def _has_torch() -> bool:
    """Whether torch is installed; the worker runs with this same Python."""
    return importlib.util.find_spec("torch") is not None


@cache
def has_onnxruntime() -> bool:
    """Whether ONNX Runtime is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


def _why_not(role: Role, settings: AgentSettings, task: Task | None) -> str:
    """Why a role cannot be taken; empty if it can. A linear network is trained without torch."""
    linear = task is not None and task.network.kind == LINEAR
    if role == "train" and settings.learn.module == _NEEDS_TORCH and not (linear or _has_torch()):
        return (
            "the role 'train' is not announced: torch is not installed for this Python; "
            "pip install 'lichen[train]', or leave 'train' out of roles"
        )
    if role == "prototype" and not has_onnxruntime():
        return (
            "the role 'prototype' is not announced: onnxruntime is not installed for this Python; "
            "pip install 'lichen[infer]', or leave 'prototype' out of roles"
        )
    return ""


def unavailable_roles(settings: AgentSettings, task: Task | None = None) -> tuple[str, ...]:
    """Why configured roles cannot be taken, one message each; empty if all can.

    Args:
        settings: of the agent.
        task: the present one; None: none is known.
    """
    return tuple(why for role in settings.roles if (why := _why_not(role, settings, task)))


def roles_of(settings: AgentSettings, task: Task | None = None) -> tuple[Role, ...]:
    """The announced roles; ``observe`` means inference, so it is left out if that is off."""
    off = () if settings.infer.enabled else ("observe",)
    return tuple(role for role in settings.roles if role not in off and not _why_not(role, settings, task))


def may_learn(settings: AgentSettings) -> bool:
    """Whether there may be a task of which offers are accepted."""
    return bool({"train", "prototype"} & {*settings.roles})


def learning_role(settings: AgentSettings, task: Task | None = None) -> Role | None:
    """The role in which offers are accepted: ``train``, else ``prototype``; None: they are not."""
    roles = roles_of(settings, task)
    return next((role for role in ("train", "prototype") if role in roles), None)


def learn_settings(settings: AgentSettings, task: Task | None = None) -> LearnSettings:
    """``[learn]``; without the minimal privacy if the device does not learn, because it sends nothing."""
    off = {"min_dp_noise": 0.0, "max_epsilon": None}
    return settings.learn if learning_role(settings, task) else settings.learn.model_copy(update=off)


def privacy_floors(settings: AgentSettings, task: Task | None = None) -> PrivacySettings:
    """``[privacy]``; without floors if the device does not learn, because it sends nothing."""
    return settings.privacy if learning_role(settings, task) else PrivacySettings()


def no_role_reason(settings: AgentSettings, task: Task | None = None) -> str:
    """Why no offer is accepted, if :func:`learning_role` returns None."""
    return (
        "; ".join(unavailable_roles(settings, task))
        or "this device has neither the role 'train' nor 'prototype'"
    )
