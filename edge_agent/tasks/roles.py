"""Which roles this device can really take: what each needs is looked for and never imported."""

import importlib.util
from functools import cache

from edge_agent.config.agent import AgentSettings, LearnSettings
from protocol.messages import Role

_NEEDS_TORCH = LearnSettings().module


@cache
def _has_torch() -> bool:
    """The worker runs with this same Python."""
    return importlib.util.find_spec("torch") is not None


@cache
def _has_onnxruntime() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


def _why_not(role: Role, settings: AgentSettings) -> str:
    """Why a role cannot be taken, in words; empty when it can."""
    if role == "train" and settings.learn.module == _NEEDS_TORCH and not _has_torch():
        return (
            "the role 'train' is not announced: torch is not installed for this Python; "
            "pip install 'lichen[train]', or leave 'train' out of roles"
        )
    if role == "prototype" and not _has_onnxruntime():
        return (
            "the role 'prototype' is not announced: onnxruntime is not installed for this Python; "
            "pip install 'lichen[infer]', or leave 'prototype' out of roles"
        )
    return ""


def unavailable_roles(settings: AgentSettings) -> tuple[str, ...]:
    """Why roles that are asked for cannot be taken, each in words; empty when all can."""
    return tuple(why for role in settings.roles if (why := _why_not(role, settings)))


def roles_of(settings: AgentSettings) -> tuple[Role, ...]:
    """The roles that are announced; ``observe`` is to infer, so not where that is switched off."""
    off = () if settings.infer.enabled else ("observe",)
    return tuple(role for role in settings.roles if role not in off and not _why_not(role, settings))


def learning_role(settings: AgentSettings) -> Role | None:
    """The role in which offers are taken: ``train``, else ``prototype``; None: they are not."""
    found = roles_of(settings)
    return next((role for role in ("train", "prototype") if role in found), None)


def learn_settings(settings: AgentSettings) -> LearnSettings:
    """``[learn]``; without the floors of privacy where nothing is learned, for nothing is sent."""
    off = {"min_dp_noise": 0.0, "max_epsilon": None}
    return settings.learn if learning_role(settings) else settings.learn.model_copy(update=off)


def no_role_reason(settings: AgentSettings) -> str:
    """Why no offer is taken, where :func:`learning_role` says None."""
    return (
        "; ".join(unavailable_roles(settings)) or "this device has neither the role 'train' nor 'prototype'"
    )
