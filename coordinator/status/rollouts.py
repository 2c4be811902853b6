"""Rollouts for pages: the list, one rollout with its gates, and what devices of it report now."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from coordinator.fleet.device_registry import read_device
from coordinator.rollout.blocked_devices import hindrance_of
from coordinator.rollout.device_record import RolloutDevice, left_out
from coordinator.rollout.model import OVER, Release, Rollout, RolloutPhase, RolloutState
from coordinator.rollout.stage_gate import StageCounts
from coordinator.rollout.view import doing, read_rollout, read_rollouts
from coordinator.status.rollout_records import (
    FailedRow,
    GateReading,
    ReleaseRow,
    RolloutDetail,
    RolloutDeviceRow,
    RolloutList,
    RolloutRow,
    StageRow,
    Standing,
    StoryRow,
    TrialReading,
)
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import Location
from protocol.rollout import Trial
from runtime.waits import span

_NAMED: Final = 100
_EPSILON: Final = 1e-9
_ENDED: Final = frozenset({RolloutPhase.COMPLETE, RolloutPhase.FAILED, RolloutPhase.ABORTED})


def list_rollouts(where: Location, mode: str) -> RolloutList:
    """The list, the newest rollout first; raises as :func:`coordinator.rollout.view.read_rollouts`."""
    course, past = read_rollouts(where, devices=False)
    last = () if course.rollout is None else (course.rollout,)
    return RolloutList(
        mode=mode,
        serial=course.serial,
        stable=_release(None if course.stable is None else course.stable.release),
        newest=_release(course.newest),
        waiting=_release(None if course.waiting is None else course.waiting.release),
        rollouts=tuple(_row(one) for one in (*last, *past)),
        failed=tuple(
            FailedRow(version=one.version, bundles=one.bundles, why=one.why, wall=one.wall)
            for one in course.failed
        ),
        refusers=len(course.refusers),
        left_out=tuple(sorted(left_out(course.refusers))[:_NAMED]),
    )


def _release(release: Release | None) -> ReleaseRow | None:
    return None if release is None else ReleaseRow(version=release.version, bundles=release.digests)


def _row(rollout: Rollout) -> RolloutRow:
    return RolloutRow(
        number=rollout.number,
        version=rollout.release.version,
        bundles=rollout.release.digests,
        phase=rollout.phase.value,
        why=rollout.why,
        began=rollout.began,
        over=rollout.over,
        stage=rollout.stage,
        stages=rollout.plan.stages,
    )


def detail(where: Location, number: int, now: float) -> RolloutDetail | None:
    """One rollout; None: the store does not have it.

    Raises:
        Misconfigured, Transient: as :func:`coordinator.rollout.view.read_rollouts`.
    """
    course, rollout, first = read_rollout(where, number)
    if rollout is None:
        return None
    members = sorted(rollout.members.items(), key=lambda item: (item[1].stage, item[0]))
    trial = rollout.plan.trial
    return RolloutDetail(
        row=_row(rollout),
        open=rollout.phase not in OVER,
        since=rollout.since,
        until=rollout.until if rollout.phase is RolloutPhase.OPEN else None,
        good_since=rollout.good_since,
        soak_s=rollout.plan.soak_s,
        deadline_s=rollout.plan.deadline_s,
        paused=rollout.paused,
        stages=tuple(_stages(rollout)),
        gates=tuple(gates(rollout, course, now)),
        trial=tuple(_trial(members, trial)),
        trial_limits={}
        if trial is None
        else {key: float(value) for key, value in trial.model_dump().items()},
        devices=tuple(_device(name, one) for name, one in members),
        story=tuple(StoryRow(wall=one.wall, what=one.what, words=one.words) for one in rollout.story),
        first=first,
        last=course.number,
    )


def stage_name(stage: int) -> str:
    """The name of a stage."""
    return "canary" if stage == 0 else f"wave {stage}"


def _stages(rollout: Rollout) -> list[StageRow]:
    found = []
    for number, who in enumerate(rollout.plan.stages):
        counts = StageCounts.of(one for one in rollout.members.values() if one.stage == number)
        over = rollout.phase is RolloutPhase.COMPLETE or number < rollout.stage
        state = "done" if over else "now" if number == rollout.stage else "next"
        keys = ("members", "committed", "failed", "trial", "silent", "barred", "left_out")
        values = {key: getattr(counts, key) for key in keys}
        waiting = counts.waiting + counts.speechless
        found.append(
            StageRow.model_validate(
                {"name": stage_name(number), "who": who, "state": state, "waiting": waiting, **values}
            )
        )
    return found


def gates(rollout: Rollout, course: RolloutState, now: float) -> list[GateReading]:
    """What the open stage must reach, and how it stands; as :func:`.stage_gate.evaluate_stage` decides."""
    plan, gates_ = rollout.plan, rollout.plan.gates
    counted = [one for one in rollout.members.values() if not one.left_out]
    failed = sum(one.failed for one in counted)
    allowed = gates_.allowed(len(counted), course.base_share)
    stage = StageCounts.of(one for one in rollout.members.values() if one.stage == rollout.stage)
    share = stage.committed / stage.may_commit if stage.may_commit else 0.0
    needed = gates_.min_committed_share
    sound = (len(counted) - failed) / len(counted) if counted else 1.0
    ended = rollout.phase in _ENDED
    good = rollout.good_since is not None or rollout.phase is RolloutPhase.COMPLETE
    enough: Standing = "good" if good else "bad" if ended else "open"
    found = [
        GateReading(
            name="Failed devices",
            value=f"{failed} of {len(counted)}",
            limit=f"at most {allowed}",
            standing="bad" if failed > allowed else "good",
            share=min(1.0, failed / max(1, allowed + 1)),
        ),
        GateReading(
            name="Did not fail",
            value=f"{len(counted) - failed} of {len(counted)}",
            limit=f"at least {needed:.0%} of all so far",
            standing="good" if not counted or sound >= needed - _EPSILON else "bad",
            share=sound,
        ),
        GateReading(
            name="Committed in this stage",
            value=f"{stage.committed} of {stage.may_commit} that are here",
            limit=f"at least {needed:.0%}",
            standing=enough,
            share=share,
        ),
    ]
    if ended:
        return found
    soaked = 0.0 if rollout.good_since is None else now - rollout.good_since
    spent = (rollout.paused if rollout.paused is not None else now) - rollout.since
    return [
        *found,
        GateReading(
            name="Stays good",
            value=span(soaked) if good else "not yet good",
            limit=f"for {span(plan.soak_s)}",
            standing="good" if good and soaked >= plan.soak_s else "open",
            share=min(1.0, soaked / plan.soak_s) if plan.soak_s else float(good),
        ),
        GateReading(
            name="Time of this stage",
            value=f"{span(spent)}{', paused' if rollout.paused is not None else ''}",
            limit=f"at most {span(plan.deadline_s)}, then it is paused",
            standing="open" if spent < plan.deadline_s else "bad",
            share=min(1.0, spent / plan.deadline_s),
        ),
    ]


_Worst = Callable[[RolloutDevice], float | None]


def _trial(members: Sequence[tuple[str, RolloutDevice]], trial: Trial | None) -> list[TrialReading]:
    """Of each measure of a trial the worst value; more is worse, but for agreement."""

    def measure(name: str) -> _Worst:
        return lambda one: one.measures.get(name)

    def drop(one: RolloutDevice) -> float | None:
        before, after = one.measures.get("accuracy_before"), one.measures.get("accuracy")
        return None if before is None or after is None else before - after

    known: tuple[tuple[str, _Worst, bool, float | None], ...] = (
        ("windows without an answer", measure("errors"), True, None if trial is None else trial.max_errors),
        (
            "latency against the previous model",
            measure("latency_ratio"),
            True,
            None if trial is None else trial.max_latency_ratio,
        ),
        (
            "agreement with the previous model",
            measure("agreement"),
            False,
            None if trial is None else trial.min_agreement,
        ),
        (
            "drift of the predicted classes",
            measure("drift"),
            True,
            None if trial is None else trial.max_drift,
        ),
        ("loss of accuracy", drop, True, None if trial is None else trial.max_accuracy_drop),
    )
    found = []
    for name, of, more, limit in known:
        values = [(value, device) for device, one in members if (value := of(one)) is not None]
        if not values:
            continue
        worst, device = max(values) if more else min(values)
        beyond = limit is not None and (worst > limit if more else worst < limit)
        standing: Standing = "open" if limit is None else "bad" if beyond else "good"
        found.append(TrialReading(name=name, worst=worst, device=device, limit=limit, standing=standing))
    return found


def _device(name: str, one: RolloutDevice) -> RolloutDeviceRow:
    return RolloutDeviceRow(
        device=name,
        stage=one.stage,
        stage_name=stage_name(one.stage),
        phase=one.phase,
        words=doing(one),
        why=one.why,
        seen=one.seen,
        barred=one.barred,
        left_out=one.left_out,
        measures=one.measures,
        times=one.times,
    )


def with_reports(
    store: Database, rows: Sequence[RolloutDeviceRow], bundles: Sequence[str]
) -> list[RolloutDeviceRow]:
    """Devices of a rollout with what their own states say now: whether they are online, what hinders them.

    Args:
        store: the tables.
        rows: some devices.
        bundles: digests of the candidate.
    """
    table = schema.devices
    query = sa.select(table).where(table.c.device.in_([row.device for row in rows]))
    known = {row["device"]: read_device(row) for row in store.rows(query)}

    def reported(row: RolloutDeviceRow) -> Mapping[str, object]:
        device = known.get(row.device)
        open_ = not row.barred and row.phase in {"waiting", "trial"}
        return {
            "online": None if device is None else device.online,
            "hindered": hindrance_of(device, bundles) if open_ else "",
        }

    return [row.model_copy(update=reported(row)) for row in rows]
