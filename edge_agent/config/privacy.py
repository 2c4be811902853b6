"""``[privacy]`` of ``agent.toml``: the protection of whole updates that this device asks of a task."""

from typing import Annotated, Literal

from pydantic import Field

from runtime.settings.load import Section


class PrivacySettings(Section):
    """``[privacy]``: no announcement can lower these floors (docs/privacy.md)."""

    consent: Literal["any", "protected"] = "any"
    """``protected``: only tasks with a table ``[privacy]`` get updates."""
    min_noise_multiplier: Annotated[float, Field(ge=0, le=1e4)] = 0.0
    """A task with less noise in its versions is refused; 0 accepts all."""
    max_epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """A task whose ``privacy.max_epsilon`` is larger, or that has none, is refused."""
    max_clip: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """A task with a larger ``privacy.clip`` is refused."""
