"""``[rollout]`` of ``coordinator.toml``, and the plan of one rollout."""

import re
from collections.abc import Mapping
from math import floor
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from protocol.base import Share, Wire, is_name
from protocol.errors import Misconfigured
from protocol.rollout import Trial
from runtime.settings.load import Section

MAX_STAGES: Final = 16
_MAX_NAMED: Final = 1000
_LABEL: Final = re.compile(r"label:([^=]+)=(.{1,64})\Z")
_FORMS: Final = "label:KEY=VALUE, share:0.1 or device:NAME,NAME"
EPSILON: Final = 1e-9
"""A share of a number of devices that misses a whole number by less is that number."""
Mode = Literal["newest", "staged", "manual"]
Time = Annotated[float, Field(ge=0, le=365 * 86400)]


def _canary(text: str) -> str:
    """As it was given, checked."""
    kind, _, rest = text.partition(":")
    if kind == "label" and (found := _LABEL.match(text)) and is_name(found[1]):
        return text
    if kind == "share" and 0 < _number(rest) <= 1:
        return text
    names = [name.strip() for name in rest.split(",")]
    if kind == "device" and len(names) <= _MAX_NAMED and all(map(is_name, names)):
        return f"device:{','.join(dict.fromkeys(names))}"
    raise ValueError(f"{text[:80]!r}: write {_FORMS} (a share is above 0 and at most 1)")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


Canary = Annotated[str, AfterValidator(_canary)]
"""``label:site=barn``, ``share:0.1`` or ``device:NAME,NAME``."""
Wave = Annotated[float, Field(gt=0, le=1)]
Waves = Annotated[tuple[Wave, ...], Field(min_length=1, max_length=MAX_STAGES - 1)]


class Gates(Wire):
    """What lets a stage pass."""

    min_committed_share: Share = 0.9
    """Of the stage's devices that were there since it began."""
    max_failed_share: Share = 0.02
    """Of the rollout's devices, beside those that failed the version before: more that rolled back or refused
    end it at once. One device may always fail, but for 0: then none may."""

    def allowed(self, devices: int, base_share: float) -> int:
        """How many of so many devices may fail, where ``base_share`` of them are expected to."""
        if not self.max_failed_share:
            return 0
        return max(1, floor((self.max_failed_share + base_share) * devices + EPSILON))


class Plan(Wire):
    """How one rollout goes."""

    canary: Canary = "share:0.1"
    waves: Waves = (1.0,)
    """Shares of the fleet, the earlier stages in them, one after the other; the last is 1."""
    soak_s: Time = 600.0
    """A stage stays good for so long before the next one begins."""
    deadline_s: Annotated[float, Field(gt=0, le=365 * 86400)] = 86400.0
    """A stage that has not passed by then is paused."""
    gates: Gates = Gates()
    trial: Trial | None = None
    """What a device asks of the candidate; None: as each device's own settings say."""

    @model_validator(mode="after")
    def _ends_with_all(self) -> Self:
        pairs = zip(self.waves, self.waves[1:], strict=False)
        if self.waves[-1] != 1 or any(after <= before for before, after in pairs):
            raise ValueError("waves: shares that grow, the last one 1, as 0.25,1")
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        """Of each stage, in words, whose it is."""
        return (self.canary, *(f"share:{share:g}" for share in self.waves))


def planned(values: Mapping[str, object]) -> Plan:
    """A plan of settings or options.

    Raises:
        Misconfigured: one of them is wrong; the message names it.
    """
    try:
        return Plan.model_validate(values, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "rollout"
        raise Misconfigured(f"{key}: {first['msg'].removeprefix('Value error, ')}") from None


class GatesSettings(Gates):
    """``[rollout.gates]``."""

    model_config = Section.model_config


class RolloutTrialSettings(Trial):
    """``[rollout.trial]``: the health window that every device has for a new version."""

    model_config = Section.model_config


class RolloutSettings(Plan):
    """``[rollout]``: how a new version reaches the devices."""

    model_config = Section.model_config

    mode: Mode = "newest"
    """``newest``: each export goes to all at once. ``staged``: each export begins a rollout. ``manual``: only
    ``lichen rollout create`` does."""
    gates: GatesSettings = GatesSettings()
    trial: RolloutTrialSettings | None = None
    """None: each device goes by its own ``[deploy.trial]``."""

    @property
    def plan(self) -> Plan:
        """Of a rollout that names nothing else."""
        return Plan.model_validate(self.model_dump(exclude={"mode"}))
