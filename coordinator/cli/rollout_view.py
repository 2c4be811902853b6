"""Output of ``lichen rollout status``, as data and as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from coordinator.rollout.device_record import LEFT_OUT_AFTER, left_out
from coordinator.rollout.model import Release, Rollout, RolloutState
from coordinator.rollout.stage_gate import StageCounts
from coordinator.rollout.view import doing, waits
from runtime.text import first_few
from runtime.waits import lines, stamp

_TABLE_MEASURES: Final = (
    "windows",
    "errors",
    "latency_p95_ms",
    "latency_ratio",
    "agreement",
    "drift",
    "accuracy",
)
"""Metrics in the table; the JSON has all."""
_MAX_PAST_ROLLOUTS: Final = 5
_MAX_NAMES: Final = 10


@dataclass(frozen=True, slots=True)
class OpenedState:
    """The devices' reports.

    ``online``: device -> whether it is online; ``hindered``: device -> its reason
    (``coordinator.rollout.blocked_devices``).
    """

    online: Mapping[str, bool] = field(default_factory=dict)
    hindered: Mapping[str, str] = field(default_factory=dict)


def told(
    course: RolloutState, past: list[Rollout], here: OpenedState, *, mode: str, running: bool, now: float
) -> dict[str, Any]:
    """All of it for programs; times in Unix seconds.

    Args:
        course: the decisions.
        past: rollouts before the last one.
        here: the devices' reports.
        mode: ``rollout.mode``.
        running: whether the coordinator runs.
        now: Unix seconds.
    """
    stable, waiting = course.stable, course.waiting
    return {
        "mode": mode,
        "running": running,
        "serial": course.serial,
        "stable": None if stable is None else {**_release(stable.release), "serial": stable.serial},
        "newest": None if course.newest is None else _release(course.newest),
        "rollout": None if course.rollout is None else _rollout(course.rollout, here),
        "waiting": None if waiting is None else {**_release(waiting.release), "mode": waiting.mode},
        "failed": [
            {"version": one.version, "bundles": list(one.bundles), "why": one.why, "wall": one.wall}
            for one in course.failed
        ],
        "refusers": {
            name: {**one.model_dump(), "left_out": one.left_out} for name, one in course.refusers.items()
        },
        "past": [_rollout(one, OpenedState()) for one in past],
        "waits": [wait.as_json(now) for wait in waits(course, here.hindered)],
    }


def _release(release: Release) -> dict[str, Any]:
    return {"version": release.version, "bundles": list(release.digests)}


def _rollout(rollout: Rollout, here: OpenedState) -> dict[str, Any]:
    stages = [one for one in rollout.members.values() if one.stage == rollout.stage]
    return {
        "number": rollout.number,
        **_release(rollout.release),
        "phase": rollout.phase.value,
        "why": rollout.why,
        "stage": rollout.stage,
        "stages": list(rollout.plan.stages),
        "plan": rollout.plan.model_dump(mode="json"),
        "began": rollout.began,
        "since": rollout.since,
        "good_since": rollout.good_since,
        "until": rollout.until if rollout.phase.value == "open" else None,
        "over": rollout.over,
        "counts": _counts(StageCounts.of(rollout.members.values())),
        "stage_counts": _counts(StageCounts.of(stages)),
        "story": [one.model_dump() for one in rollout.story],
        "devices": [
            {
                "device": name,
                "stage": one.stage,
                "serial": one.serial,
                "phase": one.phase,
                "seen": one.seen,
                "barred": one.barred,
                "left_out": one.left_out,
                "online": here.online.get(name),
                "why": one.why,
                "hindered": here.hindered.get(name),
                "measures": one.measures,
                "times": one.times,
            }
            for name, one in sorted(rollout.members.items(), key=lambda item: (item[1].stage, item[0]))
        ],
    }


def _counts(counts: StageCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in counts.__slots__}


def show(
    course: RolloutState, past: list[Rollout], here: OpenedState, *, mode: str, running: bool, now: float
) -> None:
    """The same for people."""
    console = Console()

    def say(words: str) -> None:
        console.print(words, soft_wrap=True, markup=False)

    say(
        f"mode {mode}; the coordinator {'runs' if running else 'does not run: nothing goes on until it does'}"
    )
    stable = course.stable
    none = "each export, at once (lichen status shows the newest)" if mode == "newest" else "no version yet"
    say(f"all devices: {none if stable is None else stable.release.words}")
    if course.rollout is not None:
        _show(console, course.rollout, here)
    if names := sorted(left_out(course.refusers)):
        words = f"each refused the last {LEFT_OUT_AFTER} versions or more that others kept"
        say(f"left out of every verdict: {first_few(names, _MAX_NAMES)}: {words}")
    for wait in lines(waits(course, here.hindered), now):
        say(wait)
    for one in past[:_MAX_PAST_ROLLOUTS]:
        say(f"before: rollout {one.number} of {one.release.words}: {one.phase.value}: {one.why}")


def _show(console: Console, rollout: Rollout, here: OpenedState) -> None:
    words = f"rollout {rollout.number} of {rollout.release.words}: {rollout.phase.value}"
    if rollout.why:
        words += f": {rollout.why}"
    console.print(words, soft_wrap=True, markup=False)
    console.print(f"stages: {', then '.join(rollout.plan.stages)}", soft_wrap=True, markup=False)
    table = Table(
        Column("device", overflow="fold"), "stage", "now", "phase", "measures", Column("why", overflow="fold")
    )
    for name, one in sorted(rollout.members.items(), key=lambda item: (item[1].stage, item[0])):
        measures = [f"{key} {one.measures[key]:.3g}" for key in _TABLE_MEASURES if key in one.measures]
        now = {True: "online", False: "offline", None: ""}[here.online.get(name)]
        stage = "canary" if one.stage == 0 else f"wave {one.stage}"
        why = one.why or here.hindered.get(name, "")
        why = f"left out of the verdict; {why}".removesuffix("; ") if one.left_out else why
        table.add_row(name, stage, now, doing(one), "\n".join(measures), escape(why))
    if rollout.members:
        console.print(table)
    for line in rollout.story:
        console.print(f"  {stamp(line.wall)}  {line.what}: {line.words}", soft_wrap=True, markup=False)
