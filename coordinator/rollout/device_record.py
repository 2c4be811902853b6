"""What devices report of rollouts: which refuse what others keep, and how many fail anyway. Pure.

A device says itself that it rolled a version back, and one that always says so must not end every rollout.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from protocol.base import Count, Digest, Name, Wire
from protocol.rollout import TrialReport

LEFT_OUT_AFTER: Final = 3
"""Versions in a row that a device refused and the fleet kept; then its refusal of the next one does not
count."""
MAX_BASE_SHARE: Final = 0.05
"""Of the failures that are expected: refusals must not make room for more refusals."""
MAX_REFUSERS: Final = 1000


class DeviceReport(Wire):
    """What a device says of itself."""

    online: bool
    model: Digest | None = None
    trial: TrialReport | None = None
    barred: bool = False


class Refuser(Wire):
    """A device that did not keep the last version that it was pointed at.

    ``in_row``: rollouts in a row that it failed; ``outvoted``: those of them that were completed.
    """

    in_row: Count = 0
    outvoted: Count = 0

    @property
    def left_out(self) -> bool:
        """Whether its word does not count now."""
        return self.outvoted >= LEFT_OUT_AFTER


class Outcome(Protocol):
    """What became of the version on one device of a rollout."""

    @property
    def phase(self) -> str:
        """What it says of it."""

    @property
    def failed(self) -> bool:
        """Whether it did not keep it."""

    @property
    def barred(self) -> bool:
        """Whether it is not heard."""

    @property
    def left_out(self) -> bool:
        """Whether its word does not count."""


Refusers = Mapping[Name, Refuser]


def left_out(refusers: Refusers) -> frozenset[str]:
    """The devices whose word does not count now."""
    return frozenset(name for name, one in refusers.items() if one.left_out)


def recorded(refusers: Refusers, members: Mapping[str, Outcome], *, complete: bool) -> dict[str, Refuser]:
    """After a rollout that was completed, or failed. Who kept the version is no refuser any more."""
    after = dict(refusers)
    for name, member in members.items():
        if member.barred:
            continue
        before = after.pop(name, Refuser()) if member.failed or member.phase == "committed" else None
        if before is not None and member.failed:
            outvoted = before.outvoted + complete
            after[name] = Refuser(in_row=before.in_row + 1, outvoted=outvoted)
    kept = sorted(after.items(), key=lambda item: (-item[1].outvoted, -item[1].in_row, item[0]))
    return dict(kept[:MAX_REFUSERS])


def base_share(members: Mapping[str, Outcome]) -> float:
    """The share of devices that failed a version which the fleet kept: as many may fail any version."""
    counted = [one for one in members.values() if not (one.left_out or one.barred)]
    failed = sum(one.failed for one in counted)
    answered = failed + sum(one.phase == "committed" for one in counted)
    return min(MAX_BASE_SHARE, failed / answered) if answered else 0.0
