"""Transitions of the rollout's machine while none is open, and those that start one. Pure."""

from coordinator.config.rollout import Plan
from coordinator.rollout.model import (
    Abort,
    Begun,
    Cleared,
    Create,
    Exported,
    Outcome,
    Pause,
    Promote,
    QueuedRelease,
    Release,
    Resume,
    Rollout,
    RolloutState,
    RolloutTick,
    Say,
    StableRelease,
)
from protocol.errors import Reason, Refused


def begun(course: RolloutState, event: Begun, now: float) -> Outcome:
    """The first start with a store: what was announced before becomes the stable release.

    After a restart a stage's soak starts again: no reports were heard meanwhile, and the clock may differ.
    """
    changes: dict[str, object] = {}
    if course.open is not None and course.open.good_since is not None:
        changes["rollout"] = course.open.model_copy(update={"good_since": None})
    if event.mode == "manual" and course.waiting is not None:
        changes["waiting"] = None
    if not course.begun:
        changes["begun"] = True
        if event.release is not None and course.stable is None and course.open is None:
            serial = course.next_serial(now)
            stable = StableRelease(release=event.release, serial=serial)
            changes |= {"serial": serial, "stable": stable, "newest": event.release}
    after = course.model_copy(update=changes) if changes else course
    return after, (Promote(),) if "stable" in changes else ()


def exported(course: RolloutState, event: Exported, now: float) -> Outcome:
    """A new version is handled as the mode says; one that runs, or has failed before, is ignored."""
    release = event.release
    if course.newest is not None and course.newest.key == release.key:
        return course, ()
    noted = course.model_copy(update={"newest": release})
    if any(one.key == release.key for one in course.running) or event.mode == "manual":
        return noted, ()
    if any(mark.key == release.key for mark in course.failed):
        return noted, (Say(what="rollout_not_repeated", words=f"{release.words} failed before"),)
    asked = QueuedRelease(release=release, mode=event.mode, plan=event.plan, since=now)
    if course.open is not None or not (event.mode == "newest" or _cleared(course)):
        after = noted.model_copy(update={"waiting": asked})
        return after, (Say(what="rollout_waits", words=f"{release.words} waits for rollout {course.number}"),)
    return _go(noted, asked, now)


def _go(course: RolloutState, asked: QueuedRelease, now: float) -> Outcome:
    """Start the next release in the queue."""
    if asked.mode == "newest":
        serial = course.next_serial(now)
        stable = StableRelease(release=asked.release, serial=serial)
        return course.model_copy(update={"serial": serial, "stable": stable, "waiting": None}), (Promote(),)
    return _begin(course.model_copy(update={"waiting": None}), asked.release, asked.plan, now)


def _begin(course: RolloutState, release: Release, plan: Plan, now: float) -> Outcome:
    rollout = Rollout(number=course.number + 1, release=release, plan=plan, began=now, since=now)
    words = f"{release.words}: {', then '.join(plan.stages)}"
    rollout = rollout.with_entry(now, "began", words)
    after = course.model_copy(update={"number": rollout.number, "rollout": rollout})
    return after, (Say(what="rollout_began", words=f"rollout {rollout.number}: {words}"),)


def create(course: RolloutState, event: Create, now: float) -> Outcome:
    """The operator's release; never beside another one.

    Raises:
        Refused: one is open, or it runs everywhere.
    """
    if course.open is not None:
        raise Refused(
            Reason.DUPLICATE,
            f"rollout {course.number} of {course.open.release.words} is {course.phase.value}; wait for its "
            "end, or end it: lichen rollout abort",
        )
    if course.stable is not None and course.stable.release.key == event.release.key:
        raise Refused(Reason.DUPLICATE, f"all devices are pointed at {event.release.words} already")
    waiting = course.waiting
    if waiting is not None and waiting.release.key == event.release.key:
        course = course.model_copy(update={"waiting": None})
    return _begin(course, event.release, event.plan, now)


def closed(course: RolloutState, event: Pause | Resume | Abort, _: float) -> Outcome:
    """There is nothing to pause, resume or abort.

    Raises:
        Refused: always.
    """
    last = "there was none yet" if course.rollout is None else f"the last one is {course.phase.value}"
    raise Refused(Reason.WRONG_ROUND, f"no rollout is open to {type(event).__name__.lower()}: {last}")


def idle(course: RolloutState, _: RolloutTick, now: float) -> Outcome:
    """The queued release starts once no device has a pointer of the rollout before any more."""
    if course.waiting is None or not _cleared(course):
        return course, ()
    return _go(course, course.waiting, now)


def _cleared(course: RolloutState) -> bool:
    """No device has a pointer of its own."""
    return course.rollout is None or course.rollout.cleared


def cleared(course: RolloutState, event: Cleared, _: float) -> Outcome:
    """All own pointers of devices were cleared."""
    rollout = course.rollout
    if rollout is None or rollout.number != event.number or rollout.cleared:
        return course, ()
    return course.with_rollout(rollout.model_copy(update={"cleared": True})), ()
