"""The round machine: pure, and a table. ``apply(rules, state, event, now) -> (state, commands)``.

What is not in the table is ignored, so an event that comes late, twice or never asked for does no harm. The
diagram in ``docs/rounds.md`` is drawn from the table (:func:`diagram`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coordinator.rounds.states import (
    Aggregate,
    Begin,
    Command,
    DeviceOnline,
    Evaluate,
    EvaluationDone,
    Event,
    Export,
    ExportDone,
    Finish,
    Initialise,
    Phase,
    RecordAttempt,
    Resumed,
    RoundState,
    Rules,
    Select,
    Selected,
    SendOffers,
    Tick,
    UpdateAccepted,
    UpdatesLost,
    VersionMade,
    WorkFailed,
)

Outcome = tuple[RoundState, tuple[Command, ...]]
Handler = Callable[[Rules, RoundState, Any, float], Outcome]

_RETRY_S: Final = 2.0
_RETRY_MAX_S: Final = 300.0


def apply(rules: Rules, state: RoundState, event: Event, now: float) -> Outcome:
    """What follows from an event.

    Args:
        rules: what the task allows.
        state: the state before.
        event: what happened.
        now: seconds on the driver's time line.

    Returns:
        The state after, and what to do about it. The same state object where the event changes nothing.
    """
    row = TABLE.get((state.phase, type(event)))
    return (state, ()) if row is None else row.handler(rules, state, event, now)


def needed(rules: Rules, selected: int) -> int:
    """How many of the selected devices must have delivered for the round to close early."""
    return max(1, rules.min_devices, math.ceil(rules.quorum * selected - 1e-9))


def pending(rules: Rules, state: RoundState) -> tuple[Command, ...]:
    """The work that the present phase waits for; asked for again after a restart or a failure."""
    match state.phase:
        case Phase.INITIALISING:
            return (Initialise(),)
        case Phase.COLLECTING:
            return (SendOffers(devices=state.missing),)
        case Phase.AGGREGATING:
            return (Aggregate(round=state.round, devices=state.delivered),)
        case Phase.EVALUATING:
            return (Evaluate(version=state.version),)
        case Phase.EXPORTING:
            return (Export(version=state.version),)
        case Phase.DONE:
            return (Finish(),)
        case Phase.WAITING:
            return ()


def _sorted(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({d for group in groups for d in group}))


def _enter(rules: Rules, state: RoundState, phase: Phase, now: float, **changes: Any) -> Outcome:
    """The state in its next phase, and the work of that phase."""
    fresh = {"since": now, "until": None, "enough_since": None, "failures": 0, "retry_at": None}
    entered = state.model_copy(update={**fresh, "phase": phase, **changes})
    return entered, pending(rules, entered)


def _begin(rules: Rules, state: RoundState, _: Begin, now: float) -> Outcome:
    return _enter(rules, state, Phase.INITIALISING, now)


def _resume(rules: Rules, state: RoundState, _: Resumed, now: float) -> Outcome:
    """Clamp times to what they can honestly be: a Pi's or a server's clock may have jumped while it was off."""
    until = None if state.until is None else min(state.until, now + rules.deadline_s)
    changes = {"since": min(state.since, now), "until": until, "enough_since": None, "retry_at": None}
    resumed = state.model_copy(update=changes)
    if state.phase is Phase.DONE and state.version < rules.rounds:  # the task was given more rounds
        return _next_round(rules, resumed, now)
    return resumed, pending(rules, resumed)


def _wait(rules: Rules, state: RoundState, event: Tick, now: float) -> Outcome:
    """Wait until enough devices are able, then ``spread_s`` for more, then ask for a selection."""
    able = len(set(event.able) | set(state.delivered))
    if able < max(1, rules.min_devices) or not event.able:
        return (
            (state, ())
            if state.enough_since is None
            else (state.model_copy(update={"enough_since": None}), ())
        )
    if state.enough_since is None:
        state = state.model_copy(update={"enough_since": now})
    since = now if state.enough_since is None else state.enough_since
    all_wanted = rules.devices_per_round is not None and able >= rules.devices_per_round
    if all_wanted or now - since >= rules.spread_s:
        return state, (Select(round=state.round, attempt=state.attempt),)
    return state, ()


def _open(rules: Rules, state: RoundState, event: Selected, now: float) -> Outcome:
    """Those who delivered in an attempt that was given up stay counted: same round, same base, same update."""
    selected = _sorted(event.devices, state.delivered)
    if (event.round, event.attempt) != (state.round, state.attempt) or len(selected) < max(
        1, rules.min_devices
    ):
        return state, ()
    opened, commands = _enter(
        rules,
        state,
        Phase.COLLECTING,
        now,
        selected=selected,
        invited=_sorted(state.invited, selected),
        until=now + rules.deadline_s,
        trouble="",
    )
    closed = _close_on_quorum(rules, opened, now)
    return (opened, commands) if closed is None else closed


def _close_on_quorum(rules: Rules, state: RoundState, now: float) -> Outcome | None:
    if len(state.delivered) < needed(rules, len(state.selected)):
        return None
    return _close(rules, state, now, "quorum")


def _close(rules: Rules, state: RoundState, now: float, by: str) -> Outcome:
    closed, work = _enter(rules, state, Phase.AGGREGATING, now, closed_by=by)
    record = RecordAttempt.model_validate({"round": state.round, "attempt": state.attempt, "outcome": by})
    return closed, (record, *work)


def _accept(rules: Rules, state: RoundState, event: UpdateAccepted, now: float) -> Outcome:
    """Count a device once. One that was invited in an earlier attempt joins the selected."""
    if event.round != state.round or event.device not in state.invited or event.device in state.delivered:
        return state, ()
    one = (event.device,)
    changes = {"selected": _sorted(state.selected, one), "delivered": _sorted(state.delivered, one)}
    counted = state.model_copy(update=changes)
    return _close_on_quorum(rules, counted, now) or (counted, ())


def _accept_late(rules: Rules, state: RoundState, event: UpdateAccepted, now: float) -> Outcome:
    """Between two attempts: an invited device's update still counts, and may be the one that was lacking."""
    if event.round != state.round or event.device not in state.invited or event.device in state.delivered:
        return state, ()
    delivered = _sorted(state.delivered, (event.device,))
    counted = state.model_copy(update={"delivered": delivered})
    if len(delivered) < max(1, rules.min_devices):
        return counted, ()
    return _close(rules, counted.model_copy(update={"selected": delivered}), now, "deadline")


def _collect(rules: Rules, state: RoundState, _: Tick, now: float) -> Outcome:
    if state.until is None or now < state.until:
        return state, ()
    if len(state.delivered) >= max(1, rules.min_devices):
        return _close(rules, state, now, "deadline")
    few = f"attempt {state.attempt} got {len(state.delivered)} of at least {max(1, rules.min_devices)} updates in time"
    return _give_up(rules, state, now, few)


def _give_up(rules: Rules, state: RoundState, now: float, trouble: str) -> Outcome:
    record = RecordAttempt(round=state.round, attempt=state.attempt, outcome="given_up")
    changes = {"attempt": state.attempt + 1, "selected": (), "closed_by": "", "trouble": trouble}
    reopened, work = _enter(rules, state, Phase.WAITING, now, **changes)
    return reopened, (record, *work)


def _reoffer(_: Rules, state: RoundState, event: DeviceOnline, _now: float) -> Outcome:
    return state, ((SendOffers(devices=(event.device,)),) if event.device in state.missing else ())


def _lose(rules: Rules, state: RoundState, event: UpdatesLost, now: float) -> Outcome:
    """Fold again without the unusable ones, or open the round again when too few are left."""
    lost = set(event.devices) & set(state.delivered)
    if event.round != state.round or not lost:
        return state, ()
    rest = tuple(d for d in state.delivered if d not in lost)
    left = state.model_copy(update={"delivered": rest})
    trouble = f"unusable updates of {', '.join(sorted(lost))}"
    if len(rest) < max(1, rules.min_devices):
        return _give_up(rules, left, now, trouble)
    return _enter(rules, left, Phase.AGGREGATING, now, trouble=trouble)


def _made(rules: Rules, state: RoundState, event: VersionMade, now: float) -> Outcome:
    if event.version != state.round:
        return state, ()
    new = state.model_copy(update={"version": event.version, "manifest": event.manifest, "trouble": ""})
    if rules.evaluates(event.version):
        return _enter(rules, new, Phase.EVALUATING, now)
    return _after_evaluation(rules, new, now)


def _after_evaluation(rules: Rules, state: RoundState, now: float) -> Outcome:
    if rules.exports(state.version):
        return _enter(rules, state, Phase.EXPORTING, now)
    return _next_round(rules, state, now)


def _next_round(rules: Rules, state: RoundState, now: float) -> Outcome:
    if state.version >= rules.rounds:
        return _enter(rules, state, Phase.DONE, now, selected=(), invited=(), delivered=())
    changes = {
        "round": state.version + 1,
        "attempt": 1,
        "invited": (),
        "selected": (),
        "delivered": (),
        "closed_by": "",
    }
    return _enter(rules, state, Phase.WAITING, now, **changes)


def _judged(rules: Rules, state: RoundState, event: EvaluationDone, now: float) -> Outcome:
    return _after_evaluation(rules, state, now) if event.version == state.version else (state, ())


def _exported(rules: Rules, state: RoundState, event: ExportDone, now: float) -> Outcome:
    return _next_round(rules, state, now) if event.version == state.version else (state, ())


def _failed(rules: Rules, state: RoundState, event: WorkFailed, now: float) -> Outcome:
    """Without a model nothing can go on, so making one is tried again; judging and exporting are not worth a halt."""
    of = state.version if state.phase in (Phase.EVALUATING, Phase.EXPORTING) else state.round
    if event.phase is not state.phase or event.version != of:
        return state, ()
    trouble = event.detail[:500]
    if state.phase is Phase.EVALUATING:
        return _after_evaluation(rules, state.model_copy(update={"trouble": f"evaluation: {trouble}"}), now)
    if state.phase is Phase.EXPORTING:
        return _next_round(rules, state.model_copy(update={"trouble": f"export: {trouble}"}), now)
    wait_s = min(_RETRY_MAX_S, _RETRY_S * 2 ** min(state.failures, 16))
    changes = {"failures": state.failures + 1, "retry_at": now + wait_s, "trouble": trouble}
    return state.model_copy(update=changes), ()


def _retry(rules: Rules, state: RoundState, _: Tick, now: float) -> Outcome:
    if state.retry_at is None or now < state.retry_at:
        return state, ()
    again = state.model_copy(update={"retry_at": None})
    return again, pending(rules, again)


@dataclass(frozen=True, slots=True)
class Row:
    """A cell of the table: who decides, and every phase it may lead to, with the reason in words."""

    handler: Handler
    to: tuple[tuple[Phase, str], ...]


_I, _W, _C, _A = Phase.INITIALISING, Phase.WAITING, Phase.COLLECTING, Phase.AGGREGATING
_E, _X, _D = Phase.EVALUATING, Phase.EXPORTING, Phase.DONE
_NEXT: Final = ((_X, "to be exported"), (_W, "next round"), (_D, "last round"))
_VERSION: Final = ((_E, "to be judged"), *_NEXT)

TABLE: Final[dict[tuple[Phase, type[Event]], Row]] = {
    (_I, Begin): Row(_begin, ((_I, ""),)),
    (_I, VersionMade): Row(_made, _VERSION),
    (_I, WorkFailed): Row(_failed, ((_I, "wait, try again"),)),
    (_I, Tick): Row(_retry, ((_I, "retry is due"),)),
    (_W, Tick): Row(_wait, ((_W, "select when enough are able"),)),
    (_W, Selected): Row(_open, ((_C, "round opens"), (_A, "kept updates already make the quorum"))),
    (_W, UpdateAccepted): Row(_accept_late, ((_W, "late but invited"), (_A, "late, now enough"))),
    (_C, UpdateAccepted): Row(_accept, ((_C, "counted"), (_A, "quorum"))),
    (_C, Tick): Row(_collect, ((_A, "deadline, enough"), (_W, "deadline, too few"))),
    (_C, DeviceOnline): Row(_reoffer, ((_C, "offer again"),)),
    (_A, VersionMade): Row(_made, _VERSION),
    (_A, UpdatesLost): Row(_lose, ((_A, "fold the rest"), (_W, "too few left"))),
    (_A, WorkFailed): Row(_failed, ((_A, "wait, try again"),)),
    (_A, Tick): Row(_retry, ((_A, "retry is due"),)),
    (_E, EvaluationDone): Row(_judged, _NEXT),
    (_E, WorkFailed): Row(_failed, _NEXT),
    (_X, ExportDone): Row(_exported, _NEXT[1:]),
    (_X, WorkFailed): Row(_failed, _NEXT[1:]),
    **{(phase, Resumed): Row(_resume, ((phase, "clamp times"),)) for phase in Phase},
    (_D, Resumed): Row(_resume, ((_D, "clamp times"), (_W, "the task was given more rounds"))),
}


def diagram() -> str:
    """The table as a mermaid state diagram (``Resumed`` leads every phase to itself and is left out where it stays)."""
    lines = ["stateDiagram-v2", f"  [*] --> {_I.value}"]
    for (phase, event), row in TABLE.items():
        for target, words in row.to:
            if event is not Resumed or target is not phase:
                label = f"{event.__name__}: {words}" if words else event.__name__
                lines.append(f"  {phase.value} --> {target.value} : {label}")
    return "\n".join([*lines, f"  {_D.value} --> [*]"])
