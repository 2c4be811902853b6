"""The round machine: pure, and a table. ``apply(rules, state, event, now) -> (state, commands)``.

What is not in the table is ignored, so an event that comes late, twice or never asked for does no harm.
``docs/rounds.md`` is drawn from the table (:func:`diagram`, :func:`listing`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coordinator.round_machine import transitions
from coordinator.round_machine.events import (
    Begin,
    DeviceOnline,
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
    UpdateAccepted,
    UpdateRefused,
    UpdatesLost,
    VersionMade,
    WorkFailed,
)
from coordinator.round_machine.transitions import Outcome
from runtime import state_table

Handler = Callable[[Rules, RoundState, Any, float], Outcome]


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


@dataclass(frozen=True, slots=True)
class RoundRow:
    """A cell of the table: who decides, and every phase it may lead to, with the reason in words."""

    handler: Handler
    to: tuple[tuple[RoundPhase, str], ...]


_I, _W, _C, _A = RoundPhase.INITIALISING, RoundPhase.WAITING, RoundPhase.COLLECTING, RoundPhase.AGGREGATING
_E, _X, _D = RoundPhase.EVALUATING, RoundPhase.EXPORTING, RoundPhase.DONE
_NEXT: Final = ((_X, "to be exported"), (_W, "next round"), (_D, "last round"))
_VERSION: Final = ((_E, "to be judged"), *_NEXT)

TABLE: Final[dict[tuple[RoundPhase, type[Event]], RoundRow]] = {
    (_I, Begin): RoundRow(transitions.begin, ((_I, "make version 0"),)),
    (_I, VersionMade): RoundRow(transitions.made, ((_E, "to be judged"), (_W, "first round"))),
    (_I, WorkFailed): RoundRow(transitions.failed, ((_I, "wait, try again"),)),
    (_I, RoundTick): RoundRow(transitions.retry, ((_I, "retry is due"),)),
    (_W, RoundTick): RoundRow(transitions.wait, ((_W, "select when enough are able"),)),
    (_W, Selected): RoundRow(
        transitions.open_round, ((_C, "round opens"), (_A, "kept updates already make the quorum"))
    ),
    (_W, UpdateAccepted): RoundRow(
        transitions.accept_late, ((_W, "late but invited"), (_A, "late, now enough"))
    ),
    (_W, DeviceOnline): RoundRow(transitions.forgive, ((_W, "came back: may try again"),)),
    (_C, UpdateAccepted): RoundRow(transitions.accept, ((_C, "counted"), (_A, "quorum"))),
    (_W, UpdateRefused): RoundRow(
        transitions.refuse, ((_W, "late but invited: not asked in the next attempts"),)
    ),
    (_C, UpdateRefused): RoundRow(transitions.refuse, ((_C, "not asked in the next attempts"),)),
    (_W, UpdatesLost): RoundRow(transitions.lose_open, ((_W, "delivers again"),)),
    (_C, UpdatesLost): RoundRow(transitions.lose_open, ((_C, "offer again"),)),
    (_C, RoundTick): RoundRow(
        transitions.collect,
        (
            (_A, "deadline, enough; or all that lack are away, enough"),
            (_W, "deadline, too few"),
        ),
    ),
    (_C, Presence): RoundRow(
        transitions.presence, ((_C, "the grace for devices that are away begins or ends"),)
    ),
    (_C, DeviceOnline): RoundRow(transitions.reoffer, ((_C, "offer again"),)),
    (_A, VersionMade): RoundRow(transitions.made, _VERSION),
    (_A, UpdatesLost): RoundRow(transitions.lose, ((_A, "fold the rest"), (_W, "too few left"))),
    (_A, WorkFailed): RoundRow(transitions.failed, ((_A, "wait, try again"),)),
    (_A, RoundTick): RoundRow(transitions.retry, ((_A, "retry is due"),)),
    (_E, EvaluationDone): RoundRow(transitions.judged, _NEXT),
    (_E, WorkFailed): RoundRow(transitions.failed, ((_E, "wait, try again"), *_NEXT)),
    (_E, RoundTick): RoundRow(transitions.retry, ((_E, "retry is due"),)),
    (_X, ExportDone): RoundRow(transitions.exported, _NEXT[1:]),
    (_X, WorkFailed): RoundRow(transitions.failed, ((_X, "wait, try again"), *_NEXT[1:])),
    (_X, RoundTick): RoundRow(transitions.retry, ((_X, "retry is due"),)),
    **{(phase, Resumed): RoundRow(transitions.resume, ((phase, "clamp times"),)) for phase in RoundPhase},
    (_D, Resumed): RoundRow(
        transitions.resume, ((_D, "clamp times"), (_W, "the task was given more rounds"))
    ),
}


def diagram() -> str:
    """The table as a mermaid state diagram: every step from one phase to another."""
    return state_table.diagram(TABLE, _I, _D)


def listing() -> str:
    """The whole table in Markdown, with what leaves the phase as it is."""
    return state_table.listing(TABLE)
