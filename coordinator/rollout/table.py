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
    Create,
    Event,
    Exported,
    Pause,
    Resume,
    RolloutPhase,
    RolloutState,
    RolloutTick,
)
from coordinator.rollout.shared import Outcome
from runtime import state_table

Handler = Callable[[RolloutState, Any, float], Outcome]


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A cell of the table: who decides, and every phase it may lead to, with the reason in words."""

    handler: Handler
    to: tuple[tuple[RolloutPhase, str], ...]


_N, _O, _P = RolloutPhase.NONE, RolloutPhase.OPEN, RolloutPhase.PAUSED
_C, _F, _A = RolloutPhase.COMPLETE, RolloutPhase.FAILED, RolloutPhase.ABORTED
_OVER: Final = (_N, _C, _F, _A)


def _over(phase: RolloutPhase) -> dict[tuple[RolloutPhase, type[Event]], RolloutRow]:
    """Where none is open."""
    return {
        (phase, Exported): RolloutRow(
            start_transitions.exported,
            ((_O, "mode staged"), (phase, "mode newest: all at once; manual: noted")),
        ),
        (phase, Create): RolloutRow(start_transitions.create, ((_O, "by the operator"),)),
        (phase, RolloutTick): RolloutRow(start_transitions.idle, ((_O, "one waited"),)),
        (phase, Cleared): RolloutRow(start_transitions.cleared, ((phase, "noted"),)),
        (phase, Pause): RolloutRow(start_transitions.closed, ((phase, "refused"),)),
        (phase, Resume): RolloutRow(start_transitions.closed, ((phase, "refused"),)),
        (phase, Abort): RolloutRow(start_transitions.closed, ((phase, "refused"),)),
    }


TABLE: Final[dict[tuple[RolloutPhase, type[Event]], RolloutRow]] = {
    **{
        (phase, Begun): RolloutRow(start_transitions.begun, ((phase, "what was announced before is stable"),))
        for phase in RolloutPhase
    },
    **_over(_N),
    (_O, RolloutTick): RolloutRow(
        transitions.tick,
        (
            (_O, "fill the stage; next stage after the soak"),
            (_C, "the last stage passed"),
            (_F, "too many devices failed"),
            (_P, "deadline"),
        ),
    ),
    (_O, Exported): RolloutRow(start_transitions.exported, ((_O, "waits; the newest one wins"),)),
    (_O, Create): RolloutRow(start_transitions.create, ((_O, "refused"),)),
    (_O, Pause): RolloutRow(transitions.pause, ((_P, "by the operator"),)),
    (_O, Resume): RolloutRow(transitions.going, ((_O, "it goes on already"),)),
    (_O, Abort): RolloutRow(transitions.abort, ((_A, "by the operator"),)),
    (_P, RolloutTick): RolloutRow(transitions.watch, ((_P, "listen"), (_F, "too many devices failed"))),
    (_P, Exported): RolloutRow(start_transitions.exported, ((_P, "waits; the newest one wins"),)),
    (_P, Create): RolloutRow(start_transitions.create, ((_P, "refused"),)),
    (_P, Pause): RolloutRow(transitions.again, ((_P, "it is paused already"),)),
    (_P, Resume): RolloutRow(transitions.resume, ((_O, "by the operator"),)),
    (_P, Abort): RolloutRow(transitions.abort, ((_A, "by the operator"),)),
    **_over(_C),
    **_over(_F),
    **_over(_A),
}


def apply(course: RolloutState, event: Event, now: float) -> Outcome:
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
