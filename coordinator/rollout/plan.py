"""How a rollout goes: who is first, which shares follow, and what lets a stage pass. Pure."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import ceil, floor
from types import MappingProxyType
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from coordinator.rollout.device_record import Refuser, Refusers
from protocol.base import Name, Share, Wire, is_name
from protocol.errors import Misconfigured
from protocol.rollout import Trial

MAX_STAGES: Final = 16
_MAX_NAMED: Final = 1000
_LABEL: Final = re.compile(r"label:([^=]+)=(.{1,64})\Z")
_FORMS: Final = "label:KEY=VALUE, share:0.1 or device:NAME,NAME"
_EPSILON: Final = 1e-9
_NOBODY: Final[Refusers] = MappingProxyType({})
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
        return max(1, floor((self.max_failed_share + base_share) * devices + _EPSILON))


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


class Fact(Wire):
    """What counts of one device when a stage's devices are chosen."""

    online: bool
    labels: dict[Name, str] = Field(default_factory=dict)


def rank(device: str) -> bytes:
    """Puts devices in an order that has nothing to do with them, the same every time."""
    return sha256(b"lichen rollout " + device.encode()).digest()


def chosen(
    plan: Plan, stage: int, fleet: Mapping[str, Fact], had: Iterable[str], refusers: Refusers = _NOBODY
) -> tuple[str, ...]:
    """The devices that a stage adds, sorted.

    Of a share, devices that are here come before others, those that kept the last versions before those that
    did not, and else always the same ones first; a share of a fleet that has any devices is one device at
    least. So a device that refuses everything is the canary of one rollout, and not of the next.

    Args:
        plan: of the rollout.
        stage: 0 is the canary's.
        fleet: every device that may get the candidate.
        had: devices of the stages before.
        refusers: devices that did not keep the last versions.
    """
    before = set(had)
    kind, _, rest = plan.stages[stage].partition(":")
    if kind == "share":
        most = ceil(float(rest) * len(fleet) - _EPSILON) - len(before & fleet.keys())

        def order_of(name: str) -> tuple[bool, bool, int, bytes]:
            record = refusers.get(name, Refuser())
            return record.left_out, not fleet[name].online, record.in_row, rank(name)

        order = sorted(fleet.keys() - before, key=order_of)
        return tuple(sorted(order[: max(0, most)]))
    if kind == "label":
        key, _, value = rest.partition("=")
        found = {name for name, fact in fleet.items() if fact.labels.get(key) == value}
    else:
        found = set(rest.split(",")) & fleet.keys()
    return tuple(sorted(found - before))
