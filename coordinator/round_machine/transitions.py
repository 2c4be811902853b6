"""Transitions of the round machine: one pure function an event, returning state and commands."""

from collections.abc import Sequence
from typing import Any, Final

from coordinator.round_machine.closing import closes_at, least, needed
from coordinator.round_machine.commands import Command, RecordAttempt, Select
from coordinator.round_machine.device_sets import NO_WORDS, NONE, DeviceSet
from coordinator.round_machine.events import (
    Begin,
    DeviceOnline,
    EndRounds,
    EvaluationDone,
    ExportDone,
    Presence,
    Resumed,
    RoundPhase,
    RoundState,
    RoundTick,
    Rules,
    Selected,
    UpdateRefused,
    UpdatesAccepted,
    UpdatesLost,
    VersionMade,
    WorkFailed,
)
from coordinator.round_machine.pending_work import pending
from coordinator.round_machine.retry_delay import retry_delay_s
from runtime.text import first_few

Outcome = tuple[RoundState, tuple[Command, ...]]

_NOBODY: Final[dict[str, Any]] = {
    "invited": NONE,
    "selected": NONE,
    "delivered": NONE,
    "refused": NO_WORDS,
    "salt": "",
    "below": "",
    "by_name": True,
}
_FORGIVE_S: Final = 300.0
"""A round that has waited this long for devices also asks those whose update was refused."""


def _enter(state: RoundState, phase: RoundPhase, now: float, **changes: Any) -> Outcome:
    """The state in its next phase, and the command of that phase."""
    fresh = {"since": now, "until": None, "enough_since": None, "away_since": None}
    fresh |= {"failures": 0, "retry_at": None}
    entered = state.model_copy(update={**fresh, "phase": phase, **changes})
    return entered, pending(entered)


def begin(_rules: Rules, state: RoundState, _: Begin, now: float) -> Outcome:
    """Make the initial model."""
    return _enter(state, RoundPhase.INITIALISING, now)


def resume(rules: Rules, state: RoundState, _: Resumed, now: float) -> Outcome:
    """Clamp times to a plausible range: the clock may have jumped while the machine was off."""
    until = None if state.until is None else min(state.until, now + rules.deadline_s)
    changes = {"since": min(state.since, now), "until": until, "enough_since": None}
    changes |= {"away_since": None, "retry_at": None}
    resumed = state.model_copy(update=changes)
    over = state.ended and rules.patience and not state.stopped
    if state.phase is RoundPhase.DONE and state.version < rules.rounds and not over:  # more rounds are wanted
        return _next_round(rules, resumed.model_copy(update={"ended": "", "stopped": False}), now)
    return resumed, pending(resumed)


def wait(rules: Rules, state: RoundState, event: RoundTick, now: float) -> Outcome:
    """Wait until enough devices are eligible, then ``spread_s`` for more, then ask for a selection."""
    if event.present < max(1, rules.min_devices) or not event.able:
        changes: dict[str, Any] = {} if state.enough_since is None else {"enough_since": None}
        if state.refused and now - state.since >= _FORGIVE_S:
            changes["refused"] = NO_WORDS  # without them nothing goes on, and the fault may be over
        return (state.model_copy(update=changes) if changes else state), ()
    if state.enough_since is None:
        state = state.model_copy(update={"enough_since": now})
    since = now if state.enough_since is None else state.enough_since
    all_wanted = rules.devices_per_round is not None and event.present >= rules.devices_per_round
    if all_wanted or event.settled or now - since >= rules.spread_s:
        return state, (Select(round=state.round, attempt=state.attempt),)
    return state, ()


def open_round(rules: Rules, state: RoundState, event: Selected, now: float) -> Outcome:
    """Open a round; deliveries of a failed attempt still count: same round, same base, same update."""
    selected = DeviceSet(event.devices).adding(state.delivered.unsorted())
    if (event.round, event.attempt) != (state.round, state.attempt) or len(selected) < least(rules):
        return state, ()
    opened, commands = _enter(
        state,
        RoundPhase.COLLECTING,
        now,
        selected=selected,
        invited=state.invited.adding(selected.unsorted()),
        salt=event.salt,
        below=max(state.below, event.below),
        by_name=not event.below,
        until=now + rules.deadline_s,
        trouble="",
    )
    closed = _close_on_quorum(rules, opened, now)
    return (opened, commands) if closed is None else closed


def _close_on_quorum(rules: Rules, state: RoundState, now: float) -> Outcome | None:
    if len(state.delivered) < needed(rules, len(state.selected)):
        return None
    return _close(state, now, "quorum")


def _close(state: RoundState, now: float, by: str) -> Outcome:
    closed, work = _enter(state, RoundPhase.AGGREGATING, now, closed_by=by)
    record = RecordAttempt.model_validate({"round": state.round, "attempt": state.attempt, "outcome": by})
    return closed, (record, *work)


def _fresh(state: RoundState, event: UpdatesAccepted) -> tuple[str, ...]:
    """The devices of an event of this round that were asked and have not delivered, each once."""
    if event.round != state.round:
        return ()
    devices = dict.fromkeys(event.devices)
    return tuple(d for d in devices if state.asks(d) and d not in state.delivered)


def _counted(state: RoundState, devices: Sequence[str]) -> RoundState:
    """With the updates of these devices."""
    delivered, refused = state.delivered.adding(devices), state.refused.without(devices)
    return state.model_copy(update={"delivered": delivered, "refused": refused})


def accept(rules: Rules, state: RoundState, event: UpdatesAccepted, now: float) -> Outcome:
    """Count each device once, then look at the quorum. One that was not selected joins the selected."""
    fresh = _fresh(state, event)
    if not fresh:
        return state, ()
    counted = _counted(state.model_copy(update={"selected": state.selected.adding(fresh)}), fresh)
    return _close_on_quorum(rules, counted, now) or (counted, ())


def accept_late(rules: Rules, state: RoundState, event: UpdatesAccepted, now: float) -> Outcome:
    """Between two attempts: selected devices' updates still count, and may complete the quorum."""
    fresh = _fresh(state, event)
    if not fresh:
        return state, ()
    counted = _counted(state, fresh)
    if len(counted.delivered) < least(rules):
        return counted, ()
    return _close(counted.model_copy(update={"selected": counted.delivered}), now, "deadline")


def refuse(_: Rules, state: RoundState, event: UpdateRefused, _now: float) -> Outcome:
    """Exclude a device from further attempts of this round; recorded once, however often it sends."""
    device = event.device
    known = device in state.refused or device in state.delivered
    if event.round != state.round or not state.asks(device) or known:
        return state, ()
    return state.model_copy(update={"refused": state.refused.adding({device: event.reason})}), ()


def forgive(_: Rules, state: RoundState, event: DeviceOnline, _now: float) -> Outcome:
    """A restarted device may have been repaired: it may be selected again."""
    if not event.came or event.device not in state.refused:
        return state, ()
    return state.model_copy(update={"refused": state.refused.without((event.device,))}), ()


def presence(_: Rules, state: RoundState, event: Presence, now: float) -> Outcome:
    """The grace period begins when the last missing device goes offline, and ends when one returns."""
    if event.here == (state.away_since is None):
        return state, ()
    return state.model_copy(update={"away_since": None if event.here else now}), ()


def collect(rules: Rules, state: RoundState, _: RoundTick, now: float) -> Outcome:
    """Check the deadline and the grace period."""
    ends = closes_at(rules, state)
    if state.until is None or ends is None or now < ends:
        return state, ()
    wanted = least(rules)
    if len(state.delivered) >= wanted:
        return _close(state, now, "away" if now < state.until else "deadline")
    few = f"attempt {state.attempt} got {len(state.delivered)} of at least {wanted} updates in time"
    return _give_up(rules, state, now, few)


def _give_up(rules: Rules, state: RoundState, now: float, trouble: str) -> Outcome:
    record = RecordAttempt(round=state.round, attempt=state.attempt, outcome="given_up")
    if state.ended:
        last, work = _end(rules, state, now)
        return last, (record, *work)
    changes = {"attempt": state.attempt + 1, "selected": NONE, "closed_by": "", "trouble": trouble}
    reopened, work = _enter(state, RoundPhase.WAITING, now, **changes)
    return reopened, (record, *work)


def end_later(_: Rules, state: RoundState, event: EndRounds, _now: float) -> Outcome:
    """An operator ends the rounds with the version that is being made or finished."""
    return (state, ()) if state.ended else (_stopped(state, event), ())


def _stopped(state: RoundState, event: EndRounds) -> RoundState:
    return state.model_copy(update={"ended": event.why, "stopped": True})


def end_now(rules: Rules, state: RoundState, event: EndRounds, now: float) -> Outcome:
    """An operator ends the rounds: the newest version is the last."""
    return _end(rules, _stopped(state, event), now)


def _end(rules: Rules, state: RoundState, now: float) -> Outcome:
    """Export the last version, unless it was exported as any other."""
    unexported = rules.export and not rules.exports(state.version)
    return _enter(state, RoundPhase.EXPORTING if unexported else RoundPhase.DONE, now, **_NOBODY)


def end_open(rules: Rules, state: RoundState, event: EndRounds, now: float) -> Outcome:
    """An operator ends the rounds: the open one closes with the updates that are here, if they suffice."""
    ended = _stopped(state, event)
    if len(state.delivered) >= least(rules):
        return _close(ended, now, "deadline")  # the word that older releases know for: with who is here
    return _give_up(rules, ended, now, "")


def lose(rules: Rules, state: RoundState, event: UpdatesLost, now: float) -> Outcome:
    """Fold again without the unusable updates, or open the round again if too few are left."""
    lost = {device for device in event.devices if device in state.delivered}
    if event.round != state.round or not lost:
        return state, ()
    rest = state.delivered.without(lost)
    told = dict.fromkeys(event.outliers, "outlier") | dict(event.refused)
    told = {device: why for device, why in told.items() if device in lost}
    refused = state.refused.adding(told)
    left = state.model_copy(update={"delivered": rest, "refused": refused})
    trouble = f"unusable updates of {first_few(sorted(lost))}"
    if len(rest) < least(rules):
        return _give_up(rules, left, now, trouble)
    return _enter(left, RoundPhase.AGGREGATING, now, trouble=trouble)


def lose_open(_: Rules, state: RoundState, event: UpdatesLost, _now: float) -> Outcome:
    """Before the round closes: the device is missing again; its refused receipt makes it send again."""
    lost = {device for device in event.devices if device in state.delivered}
    if event.round != state.round or not lost:
        return state, ()
    rest = state.delivered.without(lost)
    left = state.model_copy(
        update={"delivered": rest, "trouble": f"unusable updates of {first_few(sorted(lost))}"}
    )
    return left, pending(left)


def made(rules: Rules, state: RoundState, event: VersionMade, now: float) -> Outcome:
    """A version is in the registry: evaluate it, export it, or go on."""
    if event.version != state.round:
        return state, ()
    changes = {"version": event.version, "manifest": event.manifest, "trouble": ""}
    changes["ended"] = event.ended or state.ended
    new = state.model_copy(update=changes)
    if rules.evaluates(event.version):
        return _enter(new, RoundPhase.EVALUATING, now)
    return _after_evaluation(rules, new, now)


def _after_evaluation(rules: Rules, state: RoundState, now: float) -> Outcome:
    if rules.exports(state.version) or (state.ended and rules.export):
        return _enter(state, RoundPhase.EXPORTING, now)
    return _next_round(rules, state, now)


def _next_round(rules: Rules, state: RoundState, now: float) -> Outcome:
    if state.version >= rules.rounds or state.ended:
        return _enter(state, RoundPhase.DONE, now, **_NOBODY)
    return _enter(state, RoundPhase.WAITING, now, round=state.version + 1, attempt=1, closed_by="", **_NOBODY)


def judged(rules: Rules, state: RoundState, event: EvaluationDone, now: float) -> Outcome:
    """Go on after the evaluation."""
    if event.version != state.version:
        return state, ()
    worked = _worked(state)
    if event.ended:
        worked = worked.model_copy(update={"ended": event.ended})
    return _after_evaluation(rules, worked, now)


def exported(rules: Rules, state: RoundState, event: ExportDone, now: float) -> Outcome:
    """Go on after the export."""
    return _next_round(rules, _worked(state), now) if event.version == state.version else (state, ())


def _worked(state: RoundState) -> RoundState:
    """Clear the failures of earlier attempts."""
    return state.model_copy(update={"trouble": ""}) if state.failures else state


def failed(rules: Rules, state: RoundState, event: WorkFailed, now: float) -> Outcome:
    """Try again after a pause, or go on without the failed work."""
    of = state.version if state.phase in (RoundPhase.EVALUATING, RoundPhase.EXPORTING) else state.round
    if event.phase is not state.phase or event.version != of:
        return state, ()
    what = {RoundPhase.EVALUATING: "evaluation: ", RoundPhase.EXPORTING: "export: "}.get(state.phase, "")
    told = state.model_copy(update={"trouble": f"{what}{event.detail[:500]}"})
    wait_s = retry_delay_s(state, event)
    if wait_s is not None:
        return told.model_copy(update={"failures": state.failures + 1, "retry_at": now + wait_s}), ()
    if state.phase is RoundPhase.EVALUATING:
        return _after_evaluation(rules, told, now)
    return _next_round(rules, told, now)


def retry(_rules: Rules, state: RoundState, _: RoundTick, now: float) -> Outcome:
    """Repeat failed work when its delay is over."""
    if state.retry_at is None or now < state.retry_at:
        return state, ()
    again = state.model_copy(update={"retry_at": None})
    return again, pending(again)
