"""Protection that a device asks for: of whole updates (``[privacy]``), and of its windows (``[learn]``)."""

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


class AccountSettings(Section):
    """Of ``[learn]``: bounds of the device's own account, over all its tasks (docs/agent.md)."""

    min_dp_noise: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """A task whose devices add less noise (docs/agent.md#privacy) to updates is refused; 0 accepts all."""
    max_epsilon: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """The epsilon of any moment of this device's streams (or stretch of ``stretch_s``) stays within this,
    over all tasks; a task without noise is refused. None: no limit."""
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the device's own epsilon."""
    stretch_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Seconds of the streams that the device's own epsilon holds for, taken together; 0: a moment."""
