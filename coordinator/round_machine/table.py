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
    Phase,
    Presence,
    Resumed,
    RoundState,
    Rules,
    Selected,
    Tick,
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
class Row:
    """A cell of the table: who decides, and every phase it may lead to, with the reason in words."""

    handler: Handler
    to: tuple[tuple[Phase, str], ...]


_I, _W, _C, _A = Phase.INITIALISING, Phase.WAITING, Phase.COLLECTING, Phase.AGGREGATING
_E, _X, _D = Phase.EVALUATING, Phase.EXPORTING, Phase.DONE
_NEXT: Final = ((_X, "to be exported"), (_W, "next round"), (_D, "last round"))
_VERSION: Final = ((_E, "to be judged"), *_NEXT)

TABLE: Final[dict[tuple[Phase, type[Event]], Row]] = {
    (_I, Begin): Row(transitions.begin, ((_I, "make version 0"),)),
    (_I, VersionMade): Row(transitions.made, ((_E, "to be judged"), (_W, "first round"))),
    (_I, WorkFailed): Row(transitions.failed, ((_I, "wait, try again"),)),
    (_I, Tick): Row(transitions.retry, ((_I, "retry is due"),)),
    (_W, Tick): Row(transitions.wait, ((_W, "select when enough are able"),)),
    (_W, Selected): Row(
        transitions.open_round, ((_C, "round opens"), (_A, "kept updates already make the quorum"))
    ),
    (_W, UpdateAccepted): Row(transitions.accept_late, ((_W, "late but invited"), (_A, "late, now enough"))),
    (_W, DeviceOnline): Row(transitions.forgive, ((_W, "came back: may try again"),)),
    (_C, UpdateAccepted): Row(transitions.accept, ((_C, "counted"), (_A, "quorum"))),
    (_W, UpdateRefused): Row(transitions.refuse, ((_W, "late but invited: not asked in the next attempts"),)),
    (_C, UpdateRefused): Row(transitions.refuse, ((_C, "not asked in the next attempts"),)),
    (_W, UpdatesLost): Row(transitions.lose_open, ((_W, "delivers again"),)),
    (_C, UpdatesLost): Row(transitions.lose_open, ((_C, "offer again"),)),
    (_C, Tick): Row(
        transitions.collect,
        (
            (_A, "deadline, enough; or all that lack are away, enough"),
            (_W, "deadline, too few"),
        ),
    ),
    (_C, Presence): Row(transitions.presence, ((_C, "the grace for devices that are away begins or ends"),)),
    (_C, DeviceOnline): Row(transitions.reoffer, ((_C, "offer again"),)),
    (_A, VersionMade): Row(transitions.made, _VERSION),
    (_A, UpdatesLost): Row(transitions.lose, ((_A, "fold the rest"), (_W, "too few left"))),
    (_A, WorkFailed): Row(transitions.failed, ((_A, "wait, try again"),)),
    (_A, Tick): Row(transitions.retry, ((_A, "retry is due"),)),
    (_E, EvaluationDone): Row(transitions.judged, _NEXT),
    (_E, WorkFailed): Row(transitions.failed, ((_E, "wait, try again"), *_NEXT)),
    (_E, Tick): Row(transitions.retry, ((_E, "retry is due"),)),
    (_X, ExportDone): Row(transitions.exported, _NEXT[1:]),
    (_X, WorkFailed): Row(transitions.failed, ((_X, "wait, try again"), *_NEXT[1:])),
    (_X, Tick): Row(transitions.retry, ((_X, "retry is due"),)),
    **{(phase, Resumed): Row(transitions.resume, ((phase, "clamp times"),)) for phase in Phase},
    (_D, Resumed): Row(transitions.resume, ((_D, "clamp times"), (_W, "the task was given more rounds"))),
}


def diagram() -> str:
    """The table as a mermaid state diagram: every step from one phase to another."""
    return state_table.diagram(TABLE, _I, _D)


def listing() -> str:
    """The whole table in Markdown, with what leaves the phase as it is."""
    return state_table.listing(TABLE)
