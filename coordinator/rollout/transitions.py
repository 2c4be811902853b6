"""Transitions of the rollout's machine while one is open: one pure function an event."""

from typing import Final

from coordinator.rollout.device_record import RolloutDevice, base_share, left_out, recorded
from coordinator.rollout.model import (
    MAX_FAILED,
    Abort,
    FailedRelease,
    Outcome,
    Pause,
    Point,
    Promote,
    Resume,
    Rollout,
    RolloutPhase,
    RolloutState,
    RolloutTick,
    Say,
    StableRelease,
)
from coordinator.rollout.stage_devices import chosen
from coordinator.rollout.stage_gate import StageCounts, apply_report, evaluate_stage
from protocol.rollout import Trial
from runtime.text import first_few

BACK: Final = Trial(windows=1, max_latency_ratio=1000.0, max_accuracy_drop=1.0)
"""Trial of the stable release on devices that go back to it: only that it answers."""
_MAX_NAMES: Final = 5


def pause(course: RolloutState, event: Pause, now: float) -> Outcome:
    """Pause: nothing goes on by itself; devices with a pointer to the candidate keep it."""
    del event
    return _pause(course, _open(course), "by the operator", now)


def _pause(course: RolloutState, rollout: Rollout, why: str, now: float) -> Outcome:
    changes = {"phase": RolloutPhase.PAUSED, "paused": now, "good_since": None, "why": why}
    after = rollout.model_copy(update=changes).with_entry(now, "paused", why)
    words = f"rollout {rollout.number}: {why}"
    return course.with_rollout(after), (Say(what="rollout_paused", words=words, trouble=True),)


def again(course: RolloutState, event: Pause, now: float) -> Outcome:
    """It is already paused."""
    del event, now
    return course, ()


def resume(course: RolloutState, event: Resume, now: float) -> Outcome:
    """Resume: the stage has its whole time once more."""
    del event
    before = _open(course)
    # The command's clock may have been set back while the daemon's, which :func:`tick` uses, was not.
    since = max(now, before.since, before.paused or now)
    changes = {"phase": RolloutPhase.OPEN, "paused": None, "since": since, "good_since": None, "why": ""}
    after = before.model_copy(update=changes).with_entry(now, "resumed", "by the operator")
    return course.with_rollout(after), (Say(what="rollout_resumed", words=f"rollout {after.number}"),)


def going(course: RolloutState, event: Resume, now: float) -> Outcome:
    """It is already running."""
    del event, now
    return course, ()


def abort(course: RolloutState, event: Abort, now: float) -> Outcome:
    """Abort: all devices go back to the stable release."""
    del event
    return _end(course, _open(course), RolloutPhase.ABORTED, "by the operator", now)


def watch(course: RolloutState, event: RolloutTick, now: float) -> Outcome:
    """While paused: failures still end the rollout; nothing else happens."""
    rollout = _listened(_open(course), event, now)
    verdict = evaluate_stage(rollout, course.base_share)
    if verdict.failed:
        return _end(course, rollout, RolloutPhase.FAILED, verdict.failed, now)
    return (course, ()) if rollout is course.rollout else (course.with_rollout(rollout), ())


def tick(course: RolloutState, event: RolloutTick, now: float) -> Outcome:
    """Fill the stage, evaluate it, go on to the next one, or stop."""
    rollout = _listened(_open(course), event, now)
    if rollout.since > now:  # the clock was set back
        rollout = rollout.model_copy(update={"since": now, "good_since": None})
    verdict = evaluate_stage(rollout, course.base_share)
    if verdict.failed:
        return _end(course, rollout, RolloutPhase.FAILED, verdict.failed, now)
    if needs_fleet(rollout) and event.fleet:
        return _fill(course, rollout, event, now)
    if verdict.enough:
        good = rollout.good_since
        good = now if good is None or good > now else good
        if now - good >= rollout.plan.soak_s:
            return _pass(course, rollout, now)
        rollout = rollout if good == rollout.good_since else rollout.model_copy(update={"good_since": good})
    elif rollout.good_since is not None:
        rollout = rollout.model_copy(update={"good_since": None})
    if not verdict.enough and now >= rollout.until:
        return _pause(course, rollout, _late(rollout), now)
    return (course, ()) if rollout is course.rollout else (course.with_rollout(rollout), ())


def needs_fleet(rollout: Rollout | None) -> bool:
    """Whether the stage's devices are still to be chosen."""
    if rollout is None or rollout.phase is not RolloutPhase.OPEN:
        return False
    return not any(one.stage == rollout.stage for one in rollout.members.values())


def _listened(rollout: Rollout, event: RolloutTick, now: float) -> Rollout:
    digests, changed = rollout.release.digests, {}
    for name, said in event.heard.items():
        before = rollout.members.get(name)
        if before is not None and (after := apply_report(before, said, digests, now)) is not before:
            changed[name] = after
            if after.failed and not before.failed:
                words = f"{name}: {after.why or 'no reason given'}"
                rollout = rollout.with_entry(now, after.phase, words)
    if not changed:
        return rollout
    return rollout.model_copy(update={"members": {**rollout.members, **changed}})


def _fill(course: RolloutState, rollout: Rollout, event: RolloutTick, now: float) -> Outcome:
    """The stage with its devices; a wave that adds no device has passed."""
    fleet = event.fleet or {}
    found = chosen(rollout.plan, rollout.stage, fleet, rollout.members, course.refusers)
    if not found and rollout.stage > 0:
        return _pass(course, rollout, now)
    if not found:
        if now >= rollout.until:
            return _pause(course, rollout, _late(rollout), now)
        return (course, ()) if rollout is course.rollout else (course.with_rollout(rollout), ())
    serial = course.next_serial(now)
    out = _left_out(course, rollout, found)
    added = {
        name: RolloutDevice(
            stage=rollout.stage,
            serial=serial,
            times={"waiting": now},
            seen=name in fleet and fleet[name].online,
            left_out=name in out,
        )
        for name in found
    }
    words = f"{rollout.stage_words}: {first_few(found, _MAX_NAMES)}"
    rollout = rollout.model_copy(update={"members": {**rollout.members, **added}, "since": now})
    after = course.with_rollout(rollout.with_entry(now, "pointed", words)).model_copy(
        update={"serial": serial}
    )
    return after, (
        Point(devices=found),
        Say(what="rollout_stage", words=f"rollout {rollout.number}: {words}"),
    )


def _left_out(course: RolloutState, rollout: Rollout, found: tuple[str, ...]) -> frozenset[str]:
    """Devices of a stage whose refusals do not count: not all, and none that the operator named."""
    if not rollout.plan.stages[rollout.stage].startswith("share:"):
        return frozenset()
    out = left_out(course.refusers) & set(found)
    return out if rollout.stage or len(out) < len(found) else frozenset()


def _pass(course: RolloutState, rollout: Rollout, now: float) -> Outcome:
    if rollout.stage + 1 < len(rollout.plan.stages):
        changes = {"stage": rollout.stage + 1, "since": now, "good_since": None}
        return course.with_rollout(rollout.model_copy(update=changes)), ()
    counts = StageCounts.of(rollout.members.values())
    return _end(course, rollout, RolloutPhase.COMPLETE, counts.words, now)


def _end(course: RolloutState, rollout: Rollout, phase: RolloutPhase, why: str, now: float) -> Outcome:
    """End: all devices get a pointer to one release again, by a decision newer than any of the stages'."""
    over = {"phase": phase, "over": now, "paused": None, "why": why}
    rollout = rollout.model_copy(update=over).with_entry(now, phase.value, why)
    serial = course.next_serial(now)
    stable, release = course.stable, rollout.release
    failed = course.failed
    if phase is RolloutPhase.COMPLETE:
        failed = tuple(one for one in failed if one.key != release.key)
        stable = StableRelease(release=release, serial=serial, trial=rollout.plan.trial)
    elif stable is not None:
        stable = StableRelease(release=stable.release, serial=serial, trial=BACK)
    if phase is RolloutPhase.FAILED:
        mark = FailedRelease(
            key=release.key, version=release.version, bundles=release.digests, why=why[:500], wall=now
        )
        failed = (*(one for one in failed if one.key != mark.key), mark)[-MAX_FAILED:]
    changes: dict[str, object] = {"serial": serial, "stable": stable, "rollout": rollout, "failed": failed}
    if phase is not RolloutPhase.ABORTED:
        complete = phase is RolloutPhase.COMPLETE
        changes["refusers"] = recorded(course.refusers, rollout.members, complete=complete)
        changes["base_share"] = base_share(rollout.members) if complete else course.base_share
    words = f"rollout {rollout.number} of {release.words}: {why}"
    said = Say(what=f"rollout_{phase.value}", words=words, trouble=phase is not RolloutPhase.COMPLETE)
    return course.model_copy(update=changes), (Promote(), said)


def _late(rollout: Rollout) -> str:
    """Why a stage did not pass in its time."""
    stage = [one for one in rollout.members.values() if one.stage == rollout.stage]
    if not stage:
        return f"no device for {rollout.stage_words} came within {rollout.plan.deadline_s:g} s"
    counts = StageCounts.of(stage)
    needed = rollout.plan.gates.min_committed_share
    return (
        f"{rollout.stage_words} did not pass within {rollout.plan.deadline_s:g} s: {counts.words}; "
        f"{needed:g} of those that are here must commit"
    )


def _open(course: RolloutState) -> Rollout:
    rollout = course.rollout
    if rollout is None:
        raise ValueError("the table leads here with a rollout alone")
    return rollout
