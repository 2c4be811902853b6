"""Which roles this device can really take: training needs torch, which is looked for and never imported."""

import importlib.util
from functools import cache

from edge_agent.config import AgentSettings, LearnSettings
from protocol.messages import Role

_NEEDS_TORCH = LearnSettings().module


@cache
def _has_torch() -> bool:
    """The worker runs with this same Python."""
    return importlib.util.find_spec("torch") is not None


def lack(settings: AgentSettings) -> str:
    """Why the role ``train`` cannot be taken although it is asked for, in words; empty when it can."""
    if "train" not in settings.roles or settings.learn.module != _NEEDS_TORCH or _has_torch():
        return ""
    return (
        "the role 'train' is not announced: torch is not installed for this Python; "
        "pip install 'lichen[train]', or leave 'train' out of roles"
    )


def roles_of(settings: AgentSettings) -> tuple[Role, ...]:
    """The roles that are announced."""
    return tuple(role for role in settings.roles if role != "train" or not lack(settings))
