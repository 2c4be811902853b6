"""The devices of each stage of a rollout. Pure."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import ceil
from types import MappingProxyType
from typing import Final

from pydantic import Field

from coordinator.config.rollout import EPSILON, Plan
from coordinator.rollout.device_record import Refuser, Refusers
from protocol.base import Name, Wire

_NO_REFUSERS: Final[Refusers] = MappingProxyType({})


class Fact(Wire):
    """The facts about one device for the choice of a stage's devices."""

    online: bool
    labels: dict[Name, str] = Field(default_factory=dict)


def rank(device: str) -> bytes:
    """Order devices pseudo-randomly, the same every time."""
    return sha256(b"lichen rollout " + device.encode()).digest()


def chosen(
    plan: Plan, stage: int, fleet: Mapping[str, Fact], had: Iterable[str], refusers: Refusers = _NO_REFUSERS
) -> tuple[str, ...]:
    """The devices that a stage adds, sorted.

    Of a share, online devices come before others, those that kept the last versions before those that did
    not, and then in a fixed order; a share of a non-empty fleet is at least one device. So a device that
    refuses everything is the canary of one rollout, and not of the next.

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
        most = ceil(float(rest) * len(fleet) - EPSILON) - len(before & fleet.keys())

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
