"""The round machine: pure, and a table. ``apply(rules, state, event, now) -> (state, commands)``.

Events that are not in the table are ignored, so a late, repeated or unexpected event does no harm.
``docs/rounds.md`` shows the table.
"""

from collections.abc import Callable
from typing import Any, Final

from coordinator.round_machine import transitions
from coordinator.round_machine.events import (
    Begin,
    DeviceOnline,
    EndRounds,
    EvaluationDone,
    Event,
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
from coordinator.round_machine.transitions import Outcome
from runtime.state_table import Row, StateTable

Handler = Callable[[Rules, RoundState, Any, float], Outcome]


def apply(rules: Rules, state: RoundState, event: Event, now: float) -> Outcome:
    """Apply an event.

    Args:
        rules: of the task.
        state: before.
        event: what happened.
        now: seconds on the driver's time line.

    Returns:
        The state after, and the commands. The same state object if the event changes nothing.
    """
    handler = TABLE.handler(state.phase, event)
    return (state, ()) if handler is None else handler(rules, state, event, now)


_I, _W, _C, _A = RoundPhase.INITIALISING, RoundPhase.WAITING, RoundPhase.COLLECTING, RoundPhase.AGGREGATING
_E, _X, _D = RoundPhase.EVALUATING, RoundPhase.EXPORTING, RoundPhase.DONE
_NEXT: Final = ((_X, "to be exported"), (_W, "next round"), (_D, "last round"))
_VERSION: Final = ((_E, "to be judged"), *_NEXT)

_ROWS: Final[dict[tuple[RoundPhase, type[Event]], Row[RoundPhase, Handler]]] = {
    (_I, Begin): Row(transitions.begin, (_I, "make version 0")),
    (_I, VersionMade): Row(transitions.made, (_E, "to be judged"), (_W, "first round")),
    (_I, WorkFailed): Row(transitions.failed, (_I, "wait, try again")),
    (_I, RoundTick): Row(transitions.retry, (_I, "retry is due")),
    (_W, RoundTick): Row(transitions.wait, (_W, "select when enough are able")),
    (_W, Selected): Row(
        transitions.open_round, (_C, "round opens"), (_A, "kept updates already make the quorum")
    ),
    (_W, UpdatesAccepted): Row(transitions.accept_late, (_W, "late but invited"), (_A, "late, now enough")),
    (_W, DeviceOnline): Row(transitions.forgive, (_W, "came back: may try again")),
    (_C, UpdatesAccepted): Row(transitions.accept, (_C, "counted"), (_A, "quorum")),
    (_W, UpdateRefused): Row(transitions.refuse, (_W, "late but invited: not asked in the next attempts")),
    (_C, UpdateRefused): Row(transitions.refuse, (_C, "not asked in the next attempts")),
    (_W, UpdatesLost): Row(transitions.lose_open, (_W, "delivers again")),
    (_C, UpdatesLost): Row(transitions.lose_open, (_C, "delivers again")),
    (_C, RoundTick): Row(
        transitions.collect,
        (_A, "deadline, enough; or all that lack are away, enough"),
        (_W, "deadline, too few"),
    ),
    (_C, Presence): Row(transitions.presence, (_C, "the grace for devices that are away begins or ends")),
    (_A, VersionMade): Row(transitions.made, *_VERSION),
    (_A, UpdatesLost): Row(
        transitions.lose,
        (_A, "fold the rest"),
        (_W, "too few left"),
        *((p, "too few, ended") for p in (_X, _D)),
    ),
    (_A, WorkFailed): Row(transitions.failed, (_A, "wait, try again")),
    (_A, RoundTick): Row(transitions.retry, (_A, "retry is due")),
    (_E, EvaluationDone): Row(transitions.judged, *_NEXT),
    (_E, WorkFailed): Row(transitions.failed, (_E, "wait, try again"), *_NEXT),
    (_E, RoundTick): Row(transitions.retry, (_E, "retry is due")),
    (_X, ExportDone): Row(transitions.exported, *_NEXT[1:]),
    (_X, WorkFailed): Row(transitions.failed, (_X, "wait, try again"), *_NEXT[1:]),
    (_X, RoundTick): Row(transitions.retry, (_X, "retry is due")),
    (_I, EndRounds): Row(transitions.end_later, (_I, "version 0 is the last")),
    (_W, EndRounds): Row(transitions.end_now, (_X, "to be exported"), (_D, "the newest version is the last")),
    (_C, EndRounds): Row(
        transitions.end_open, (_A, "enough"), (_X, "too few, to be exported"), (_D, "too few")
    ),
    (_A, EndRounds): Row(transitions.end_later, (_A, "its version is the last")),
    (_E, EndRounds): Row(transitions.end_later, (_E, "its version is the last")),
    (_X, EndRounds): Row(transitions.end_later, (_X, "its version is the last")),
    **{(phase, Resumed): Row(transitions.resume, (phase, "clamp times")) for phase in RoundPhase},
    (_D, Resumed): Row(transitions.resume, (_D, "clamp times"), (_W, "the task was given more rounds")),
}
TABLE: Final = StateTable(_ROWS, first=_I, last=_D)
