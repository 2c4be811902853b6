"""``[rollout]`` of ``coordinator.toml``."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from coordinator.rollout.plan import Canary, Gates, Plan, Time, Waves
from protocol.rollout import Trial
from runtime.settings.load import Section


class GatesSettings(Gates):
    """``[rollout.gates]``."""

    model_config = Section.model_config


class RolloutTrialSettings(Trial):
    """``[rollout.trial]``: the health window that every device has for a new version."""

    model_config = Section.model_config


class RolloutSettings(Section):
    """``[rollout]``: how a new version reaches the devices."""

    mode: Literal["newest", "staged", "manual"] = "newest"
    """``newest``: each export goes to all at once. ``staged``: each export begins a rollout. ``manual``: only
    ``lichen rollout create`` does."""
    canary: Canary = "share:0.1"
    """Who is first: ``label:KEY=VALUE``, ``share:0.1`` or ``device:NAME,NAME``."""
    waves: Waves = (1.0,)
    """Shares of the fleet, one after the other; the last is 1."""
    soak_s: Time = 600.0
    """A stage must stay good for so long."""
    deadline_s: Annotated[float, Field(gt=0, le=365 * 86400)] = 86400.0
    """A stage that has not passed by then is paused."""
    gates: GatesSettings = GatesSettings()
    trial: RolloutTrialSettings | None = None
    """None: each device goes by its own ``[deploy.trial]``."""

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        _ = self.plan
        return self

    @property
    def plan(self) -> Plan:
        """Of a rollout that names nothing else."""
        return Plan.model_validate(self.model_dump(exclude={"mode"}))
