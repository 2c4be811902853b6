"""The steps of the rollout's machine while one is open: one pure function an event."""

from typing import Final

from coordinator.rollout.device_record import base_share, left_out, recorded
from coordinator.rollout.model import (
    MAX_FAILED,
    Abort,
    Course,
    Mark,
    Member,
    Pause,
    Phase,
    Point,
    Promote,
    Resume,
    Rollout,
    Say,
    Stable,
    Tick,
)
from coordinator.rollout.plan import chosen
from coordinator.rollout.shared import Outcome, next_serial, told, with_rollout
from coordinator.rollout.stage_gate import Counts, heard, judged
from protocol.rollout import Trial

BACK: Final = Trial(windows=1, max_latency_ratio=1000.0, max_accuracy_drop=1.0)
"""What is asked of the stable release where devices go back to it: that it answers."""
_NAMES: Final = 5


def pause(course: Course, event: Pause, now: float) -> Outcome:
    """Nothing goes on by itself; devices that were pointed at the candidate keep it."""
    del event
    return _pause(course, _open(course), "by the operator", now)


def _pause(course: Course, rollout: Rollout, why: str, now: float) -> Outcome:
    changes = {"phase": Phase.PAUSED, "paused": now, "good_since": None, "why": why}
    after = told(rollout.model_copy(update=changes), now, "paused", why)
    words = f"rollout {rollout.number}: {why}"
    return with_rollout(course, after), (Say(what="rollout_paused", words=words, trouble=True),)


def again(course: Course, event: Pause, now: float) -> Outcome:
    """It is paused already."""
    del event, now
    return course, ()


def resume(course: Course, event: Resume, now: float) -> Outcome:
    """The stage has its whole time once more."""
    del event
    before = _open(course)
    # The command's clock may have been set back while the daemon's, which :func:`tick` goes by, was not.
    since = max(now, before.since, before.paused or now)
    changes = {"phase": Phase.OPEN, "paused": None, "since": since, "good_since": None, "why": ""}
    after = told(before.model_copy(update=changes), now, "resumed", "by the operator")
    return with_rollout(course, after), (Say(what="rollout_resumed", words=f"rollout {after.number}"),)


def going(course: Course, event: Resume, now: float) -> Outcome:
    """It goes on already."""
    del event, now
    return course, ()


def abort(course: Course, event: Abort, now: float) -> Outcome:
    """All devices go back to the stable release."""
    del event
    return _end(course, _open(course), Phase.ABORTED, "by the operator", now)


def watch(course: Course, event: Tick, now: float) -> Outcome:
    """While it is paused: who failed ends it all the same; nothing else happens."""
    rollout = _listened(_open(course), event, now)
    verdict = judged(rollout, course.base_share)
    if verdict.failed:
        return _end(course, rollout, Phase.FAILED, verdict.failed, now)
    return (course, ()) if rollout is course.rollout else (with_rollout(course, rollout), ())


def tick(course: Course, event: Tick, now: float) -> Outcome:
    """Fill the stage, judge it, go on to the next one, or stop."""
    rollout = _listened(_open(course), event, now)
    if rollout.since > now:  # the clock was set back
        rollout = rollout.model_copy(update={"since": now, "good_since": None})
    verdict = judged(rollout, course.base_share)
    if verdict.failed:
        return _end(course, rollout, Phase.FAILED, verdict.failed, now)
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
    return (course, ()) if rollout is course.rollout else (with_rollout(course, rollout), ())


def needs_fleet(rollout: Rollout | None) -> bool:
    """Whether the stage's devices are still to be chosen."""
    if rollout is None or rollout.phase is not Phase.OPEN:
        return False
    return not any(one.stage == rollout.stage for one in rollout.members.values())


def _listened(rollout: Rollout, event: Tick, now: float) -> Rollout:
    digests, changed = rollout.release.digests, {}
    for name, said in event.heard.items():
        before = rollout.members.get(name)
        if before is not None and (after := heard(before, said, digests, now)) is not before:
            changed[name] = after
            if after.failed and not before.failed:
                words = f"{name}: {after.why or 'no reason given'}"
                rollout = told(rollout, now, after.phase, words)
    if not changed:
        return rollout
    return rollout.model_copy(update={"members": {**rollout.members, **changed}})


def _fill(course: Course, rollout: Rollout, event: Tick, now: float) -> Outcome:
    """The stage's devices; a wave that has nobody to add has passed."""
    fleet = event.fleet or {}
    found = chosen(rollout.plan, rollout.stage, fleet, rollout.members, course.refusers)
    if not found and rollout.stage > 0:
        return _pass(course, rollout, now)
    if not found:
        if now >= rollout.until:
            return _pause(course, rollout, _late(rollout), now)
        return (course, ()) if rollout is course.rollout else (with_rollout(course, rollout), ())
    serial = next_serial(course, now)
    out = _left_out(course, rollout, found)
    added = {
        name: Member(
            stage=rollout.stage,
            serial=serial,
            times={"waiting": now},
            seen=name in fleet and fleet[name].online,
            left_out=name in out,
        )
        for name in found
    }
    more = f" and {len(found) - _NAMES} more" if len(found) > _NAMES else ""
    words = f"{rollout.stage_words}: {', '.join(found[:_NAMES])}{more}"
    rollout = rollout.model_copy(update={"members": {**rollout.members, **added}, "since": now})
    after = with_rollout(course, told(rollout, now, "pointed", words)).model_copy(update={"serial": serial})
    return after, (
        Point(devices=found),
        Say(what="rollout_stage", words=f"rollout {rollout.number}: {words}"),
    )


def _left_out(course: Course, rollout: Rollout, found: tuple[str, ...]) -> frozenset[str]:
    """Of a stage's devices those whose refusals do not count: not all, and none that the operator named."""
    if not rollout.plan.stages[rollout.stage].startswith("share:"):
        return frozenset()
    out = left_out(course.refusers) & set(found)
    return out if rollout.stage or len(out) < len(found) else frozenset()


def _pass(course: Course, rollout: Rollout, now: float) -> Outcome:
    if rollout.stage + 1 < len(rollout.plan.stages):
        changes = {"stage": rollout.stage + 1, "since": now, "good_since": None}
        return with_rollout(course, rollout.model_copy(update=changes)), ()
    counts = Counts.of(rollout.members.values())
    return _end(course, rollout, Phase.COMPLETE, counts.words, now)


def _end(course: Course, rollout: Rollout, phase: Phase, why: str, now: float) -> Outcome:
    """Over: all are pointed at one release again, by a decision that is newer than any of the stages'."""
    over = {"phase": phase, "over": now, "paused": None, "why": why}
    rollout = told(rollout.model_copy(update=over), now, phase.value, why)
    serial = next_serial(course, now)
    stable, release = course.stable, rollout.release
    failed = course.failed
    if phase is Phase.COMPLETE:
        failed = tuple(one for one in failed if one.key != release.key)
        stable = Stable(release=release, serial=serial, trial=rollout.plan.trial)
    elif stable is not None:
        stable = Stable(release=stable.release, serial=serial, trial=BACK)
    if phase is Phase.FAILED:
        mark = Mark(
            key=release.key, version=release.version, bundles=release.digests, why=why[:500], wall=now
        )
        failed = (*(one for one in failed if one.key != mark.key), mark)[-MAX_FAILED:]
    changes: dict[str, object] = {"serial": serial, "stable": stable, "rollout": rollout, "failed": failed}
    if phase is not Phase.ABORTED:
        complete = phase is Phase.COMPLETE
        changes["refusers"] = recorded(course.refusers, rollout.members, complete=complete)
        changes["base_share"] = base_share(rollout.members) if complete else course.base_share
    words = f"rollout {rollout.number} of {release.words}: {why}"
    said = Say(what=f"rollout_{phase.value}", words=words, trouble=phase is not Phase.COMPLETE)
    return course.model_copy(update=changes), (Promote(), said)


def _late(rollout: Rollout) -> str:
    """Why a stage did not pass in its time."""
    stage = [one for one in rollout.members.values() if one.stage == rollout.stage]
    if not stage:
        return f"no device for {rollout.stage_words} came within {rollout.plan.deadline_s:g} s"
    counts = Counts.of(stage)
    needed = rollout.plan.gates.min_committed_share
    return (
        f"{rollout.stage_words} did not pass within {rollout.plan.deadline_s:g} s: {counts.words}; "
        f"{needed:g} of those that are here must commit"
    )


def _open(course: Course) -> Rollout:
    rollout = course.rollout
    if rollout is None:
        raise ValueError("the table leads here with a rollout alone")
    return rollout
