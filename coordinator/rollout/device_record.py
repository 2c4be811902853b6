"""Records of devices, in a rollout and across rollouts: refused versions, expected failures. Pure.

Rollbacks are reported by the devices, and a device that always reports one must not end every rollout.
"""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from protocol.base import Count, Digest, Name, Wire
from protocol.rollout import TrialReport

LEFT_OUT_AFTER: Final = 3
"""Versions in a row that a device refused and the fleet kept; then its next refusal does not count."""
MAX_BASE_SHARE: Final = 0.05
"""Cap on expected failures: refusals must not make room for more refusals."""
MAX_REFUSERS: Final = 1000


class DeviceReport(Wire):
    """A device's report."""

    online: bool
    model: Digest | None = None
    trial: TrialReport | None = None
    barred: bool = False


class Refuser(Wire):
    """A device that did not keep the last version of its pointer.

    ``in_row``: rollouts in a row that it failed; ``outvoted``: those of them that were completed.
    """

    in_row: Count = 0
    outvoted: Count = 0

    @property
    def left_out(self) -> bool:
        """Whether its refusals are ignored now."""
        return self.outvoted >= LEFT_OUT_AFTER


class RolloutDevice(Wire):
    """A device with a pointer to the candidate, and its reports."""

    stage: Count
    serial: Count
    """Serial of its pointer."""
    seen: bool = False
    """It was online since then."""
    phase: Literal["waiting", "trial", "committed", "rolled_back", "refused"] = "waiting"
    why: str = ""
    measures: dict[str, float] = Field(default_factory=dict)
    times: dict[str, float] = Field(default_factory=dict)
    """When each phase was first reported; ``waiting``: when it got the pointer."""
    barred: bool = False
    """It is denied now (quarantined, revoked): the stage does not wait for it."""
    left_out: bool = False
    """Its refusals do not count: it refused the last versions that others kept."""
    runs: bool = False
    """It runs the candidate and reports no trial: an agent of a release without trials."""

    @property
    def failed(self) -> bool:
        """It did not keep the candidate."""
        return self.phase in {"rolled_back", "refused"}


Refusers = Mapping[Name, Refuser]


def left_out(refusers: Refusers) -> frozenset[str]:
    """The devices whose refusals are ignored now."""
    return frozenset(name for name, one in refusers.items() if one.left_out)


def recorded(
    refusers: Refusers, members: Mapping[str, RolloutDevice], *, complete: bool
) -> dict[str, Refuser]:
    """The records after a completed or failed rollout. A device that kept the version is removed."""
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


def base_share(members: Mapping[str, RolloutDevice]) -> float:
    """The share of devices that failed a version which the fleet kept: expected to fail any version."""
    counted = [one for one in members.values() if not (one.left_out or one.barred)]
    failed = sum(one.failed for one in counted)
    answered = failed + sum(one.phase == "committed" for one in counted)
    return min(MAX_BASE_SHARE, failed / answered) if answered else 0.0
