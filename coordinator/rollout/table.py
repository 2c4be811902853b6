"""The rollout's machine: pure, and a table. ``apply(course, event, now) -> (course, commands)``.

``docs/rollout-state.md`` is drawn from the table (:func:`diagram`, :func:`listing`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coordinator.rollout import start_transitions, transitions
from coordinator.rollout.model import (
    OVER,
    Abort,
    Begun,
    Cleared,
    Course,
    Create,
    Event,
    Exported,
    Pause,
    Phase,
    Resume,
    Tick,
)
from coordinator.rollout.shared import Outcome
from runtime import state_table

Handler = Callable[[Course, Any, float], Outcome]


@dataclass(frozen=True, slots=True)
class Row:
    """A cell of the table: who decides, and every phase it may lead to, with the reason in words."""

    handler: Handler
    to: tuple[tuple[Phase, str], ...]


_N, _O, _P = Phase.NONE, Phase.OPEN, Phase.PAUSED
_C, _F, _A = Phase.COMPLETE, Phase.FAILED, Phase.ABORTED
_OVER: Final = (_N, _C, _F, _A)


def _over(phase: Phase) -> dict[tuple[Phase, type[Event]], Row]:
    """Where none is open."""
    return {
        (phase, Exported): Row(
            start_transitions.exported,
            ((_O, "mode staged"), (phase, "mode newest: all at once; manual: noted")),
        ),
        (phase, Create): Row(start_transitions.create, ((_O, "by the operator"),)),
        (phase, Tick): Row(start_transitions.idle, ((_O, "one waited"),)),
        (phase, Cleared): Row(start_transitions.cleared, ((phase, "noted"),)),
        (phase, Pause): Row(start_transitions.closed, ((phase, "refused"),)),
        (phase, Resume): Row(start_transitions.closed, ((phase, "refused"),)),
        (phase, Abort): Row(start_transitions.closed, ((phase, "refused"),)),
    }


TABLE: Final[dict[tuple[Phase, type[Event]], Row]] = {
    **{
        (phase, Begun): Row(start_transitions.begun, ((phase, "what was announced before is stable"),))
        for phase in Phase
    },
    **_over(_N),
    (_O, Tick): Row(
        transitions.tick,
        (
            (_O, "fill the stage; next stage after the soak"),
            (_C, "the last stage passed"),
            (_F, "too many devices failed"),
            (_P, "deadline"),
        ),
    ),
    (_O, Exported): Row(start_transitions.exported, ((_O, "waits; the newest one wins"),)),
    (_O, Create): Row(start_transitions.create, ((_O, "refused"),)),
    (_O, Pause): Row(transitions.pause, ((_P, "by the operator"),)),
    (_O, Resume): Row(transitions.going, ((_O, "it goes on already"),)),
    (_O, Abort): Row(transitions.abort, ((_A, "by the operator"),)),
    (_P, Tick): Row(transitions.watch, ((_P, "listen"), (_F, "too many devices failed"))),
    (_P, Exported): Row(start_transitions.exported, ((_P, "waits; the newest one wins"),)),
    (_P, Create): Row(start_transitions.create, ((_P, "refused"),)),
    (_P, Pause): Row(transitions.again, ((_P, "it is paused already"),)),
    (_P, Resume): Row(transitions.resume, ((_O, "by the operator"),)),
    (_P, Abort): Row(transitions.abort, ((_A, "by the operator"),)),
    **_over(_C),
    **_over(_F),
    **_over(_A),
}


def apply(course: Course, event: Event, now: float) -> Outcome:
    """What follows from an event.

    Args:
        course: what was decided so far.
        event: what happened.
        now: unix seconds.

    Returns:
        The course after, and what to do about it. The same object where the event changes nothing.

    Raises:
        Refused: the operator asks for what cannot be now; in words.
    """
    row = TABLE.get((course.phase, type(event)))
    return (course, ()) if row is None else row.handler(course, event, now)


def diagram() -> str:
    """The table as a mermaid state diagram: every step from one phase to another."""
    return state_table.diagram(TABLE, _N)


def listing() -> str:
    """The whole table in Markdown; the phases in which none is open are one."""
    over = ", ".join(phase.value for phase in _OVER)
    lines = ["| phase | event | leads to |", "|---|---|---|"]
    for (phase, event), row in TABLE.items():
        if phase in OVER and phase is not _N:
            continue
        leads = "; ".join(
            f"{'as it is' if target is phase else target.value} ({words})" for target, words in row.to
        )
        lines.append(f"| {over if phase is _N else phase.value} | {event.__name__} | {leads} |")
    return "\n".join(lines)
