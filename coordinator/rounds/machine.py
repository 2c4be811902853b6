"""The round machine: pure, and a table. ``apply(rules, state, event, now) -> (state, commands)``.

What is not in the table is ignored, so an event that comes late, twice or never asked for does no harm.
``docs/rounds.md`` is drawn from the table (:func:`diagram`, :func:`listing`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coordinator.rounds import steps
from coordinator.rounds.states import (
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
from coordinator.rounds.steps import Outcome
from runtime import drawn

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
    (_I, Begin): Row(steps.begin, ((_I, "make version 0"),)),
    (_I, VersionMade): Row(steps.made, ((_E, "to be judged"), (_W, "first round"))),
    (_I, WorkFailed): Row(steps.failed, ((_I, "wait, try again"),)),
    (_I, Tick): Row(steps.retry, ((_I, "retry is due"),)),
    (_W, Tick): Row(steps.wait, ((_W, "select when enough are able"),)),
    (_W, Selected): Row(
        steps.open_round, ((_C, "round opens"), (_A, "kept updates already make the quorum"))
    ),
    (_W, UpdateAccepted): Row(steps.accept_late, ((_W, "late but invited"), (_A, "late, now enough"))),
    (_W, DeviceOnline): Row(steps.forgive, ((_W, "came back: may try again"),)),
    (_C, UpdateAccepted): Row(steps.accept, ((_C, "counted"), (_A, "quorum"))),
    (_W, UpdateRefused): Row(steps.refuse, ((_W, "late but invited: not asked in the next attempts"),)),
    (_C, UpdateRefused): Row(steps.refuse, ((_C, "not asked in the next attempts"),)),
    (_W, UpdatesLost): Row(steps.lose_open, ((_W, "delivers again"),)),
    (_C, UpdatesLost): Row(steps.lose_open, ((_C, "offer again"),)),
    (_C, Tick): Row(
        steps.collect,
        (
            (_A, "deadline, enough; or all that lack are away, enough"),
            (_W, "deadline, too few"),
        ),
    ),
    (_C, Presence): Row(steps.presence, ((_C, "the grace for devices that are away begins or ends"),)),
    (_C, DeviceOnline): Row(steps.reoffer, ((_C, "offer again"),)),
    (_A, VersionMade): Row(steps.made, _VERSION),
    (_A, UpdatesLost): Row(steps.lose, ((_A, "fold the rest"), (_W, "too few left"))),
    (_A, WorkFailed): Row(steps.failed, ((_A, "wait, try again"),)),
    (_A, Tick): Row(steps.retry, ((_A, "retry is due"),)),
    (_E, EvaluationDone): Row(steps.judged, _NEXT),
    (_E, WorkFailed): Row(steps.failed, ((_E, "wait, try again"), *_NEXT)),
    (_E, Tick): Row(steps.retry, ((_E, "retry is due"),)),
    (_X, ExportDone): Row(steps.exported, _NEXT[1:]),
    (_X, WorkFailed): Row(steps.failed, ((_X, "wait, try again"), *_NEXT[1:])),
    (_X, Tick): Row(steps.retry, ((_X, "retry is due"),)),
    **{(phase, Resumed): Row(steps.resume, ((phase, "clamp times"),)) for phase in Phase},
    (_D, Resumed): Row(steps.resume, ((_D, "clamp times"), (_W, "the task was given more rounds"))),
}


def diagram() -> str:
    """The table as a mermaid state diagram: every step from one phase to another."""
    return drawn.diagram(TABLE, _I, _D)


def listing() -> str:
    """The whole table in Markdown, with what leaves the phase as it is."""
    return drawn.listing(TABLE)
