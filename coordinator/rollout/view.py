"""Read-only view of the store of rollouts, for other processes: writes nothing, waits for no lock."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from coordinator.rollout.device_record import RolloutDevice
from coordinator.rollout.model import Rollout, RolloutPhase, RolloutState
from coordinator.rollout.stage_gate import StageCounts
from coordinator.rollout.store import ROLLOUTS, read_course, read_first, read_one, read_past
from coordinator.storage.engines.shared_tables import Statements
from coordinator.storage.location import Location
from protocol.errors import Misconfigured
from runtime.text import first_few
from runtime.waits import Wait, span

_MAX_NAMES: Final = 5
_MAX_REASON: Final = 100
"""Characters of a device's reason in a line that names several devices."""
_NO_OBSTACLES: Final[Mapping[str, str]] = MappingProxyType({})


def read_rollouts(where: Location | Path, *, devices: bool = True) -> tuple[RolloutState, list[Rollout]]:
    """All decisions, and the rollouts before the last one, the newest first; with or without devices.

    Raises:
        Misconfigured: the store exists but cannot be read.
        Transient: the disk is full, or another process holds it.
    """
    with _reading(where) as tables:
        if tables is None:
            return RolloutState(), []
        return read_course(tables, devices=devices), read_past(tables, devices=devices)


def read_decisions(where: Location | Path) -> RolloutState:
    """All decisions, with the devices of the last rollout alone; raises as :func:`read_rollouts`."""
    with _reading(where) as tables:
        return RolloutState() if tables is None else read_course(tables)


def read_rollout(where: Location | Path, number: int) -> tuple[RolloutState, Rollout | None, int]:
    """All decisions, one rollout with its devices (None: not stored), and the number of the oldest.

    Raises:
        Misconfigured, Transient: as :func:`read_rollouts`.
    """
    with _reading(where) as tables:
        if tables is None:
            return RolloutState(), None, 0
        course, rollout = read_one(tables, number)
        first = read_first(tables)
        return course, rollout, course.number if first is None else first


@contextmanager
def _reading(where: Location | Path) -> Iterator[Statements | None]:
    location = Location.at(where)
    try:
        with location.reader(ROLLOUTS) as tables:
            yield tables
    except (sqlite3.Error, ValidationError) as error:
        raise Misconfigured(
            f"{location.where}: the store of rollouts cannot be read: {error}"[:500]
        ) from None


def standing(course: RolloutState) -> dict[str, Any] | None:
    """The last rollout in short, for the coordinator's status; None: there was none."""
    rollout = course.rollout
    if rollout is None:
        return None
    return {
        "number": rollout.number,
        "version": rollout.release.version,
        "phase": rollout.phase.value,
        "stage": rollout.stage,
    }


def waits(course: RolloutState, hindered: Mapping[str, str] = _NO_OBSTACLES) -> list[Wait]:
    """What the open rollout waits for, and the release that waits for its end.

    Args:
        course: the decisions.
        hindered: device -> its reason (``coordinator.rollout.blocked_devices``).
    """
    rollout, found = course.open, []
    if rollout is not None:
        found.append(_paused(rollout) if rollout.phase is RolloutPhase.PAUSED else _stage(rollout, hindered))
    if course.waiting is not None:
        what = course.waiting.release.words
        after = "it begins" if rollout is None else f"until rollout {rollout.number} is over"
        found.append(Wait("rollout next", f"{what} waits for its turn", course.waiting.since, None, after))
    return found


def _paused(rollout: Rollout) -> Wait:
    words = f"rollout {rollout.number} of {rollout.release.words} is paused: {rollout.why}"
    return Wait("rollout", words, rollout.paused, None, "until lichen rollout resume or abort")


def _stage(rollout: Rollout, hindered: Mapping[str, str]) -> Wait:
    stage = {name: one for name, one in rollout.members.items() if one.stage == rollout.stage}
    told = f"rollout {rollout.number} of {rollout.release.words}, {rollout.stage_words}"
    if not stage:
        words = f"{told}: no device for it is here yet"
        return Wait("rollout", words, rollout.since, rollout.until, "it is paused")
    counts = StageCounts.of(stage.values())
    if rollout.good_since is not None:
        until = rollout.good_since + rollout.plan.soak_s
        words = f"{told}: {counts.words}; it must stay so for {span(rollout.plan.soak_s)}"
        return Wait("rollout", words, rollout.good_since, until, "the next stage begins, or it is complete")
    missing = [
        name
        for name, one in stage.items()
        if one.phase != "committed" and not (one.failed or one.barred or one.left_out)
    ]
    missing.sort(key=lambda name: (name not in hindered, name))  # reasons that a person can act on come first
    shown = [f"{name} ({_short(hindered[name])})" if name in hindered else name for name in missing]
    words = f"{told}: {counts.words}; waits for {first_few(shown, _MAX_NAMES)}"
    return Wait("rollout", words, rollout.since, rollout.until, "it is paused")


def _short(words: str) -> str:
    """The text without its middle: a path comes before its error."""
    head = _MAX_REASON // 3
    return words if len(words) <= _MAX_REASON else f"{words[:head]}...{words[head + 3 - _MAX_REASON :]}"


def doing(member: RolloutDevice) -> str:
    """A device's phase, as text."""
    if member.barred:
        return "quarantined or revoked"
    if member.phase != "waiting":
        return member.phase.replace("_", " ")
    if member.runs:
        return "runs it, knows no trial"
    return "not yet on trial" if member.seen else "not here since"
