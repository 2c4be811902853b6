"""The rollout's state machine: pure, and a table. ``apply(course, event, now) -> (course, commands)``.

``docs/rollout-state.md`` shows the table.
"""

from collections.abc import Callable
from typing import Any, Final

from coordinator.rollout import start_transitions, transitions
from coordinator.rollout.model import (
    Abort,
    Begun,
    Cleared,
    Create,
    Event,
    Exported,
    Outcome,
    Pause,
    Resume,
    RolloutPhase,
    RolloutState,
    RolloutTick,
)
from runtime.state_table import Row, StateTable

Handler = Callable[[RolloutState, Any, float], Outcome]
_Rows = dict[tuple[RolloutPhase, type[Event]], Row[RolloutPhase, Handler]]

_N, _O, _P = RolloutPhase.NONE, RolloutPhase.OPEN, RolloutPhase.PAUSED
_C, _F, _A = RolloutPhase.COMPLETE, RolloutPhase.FAILED, RolloutPhase.ABORTED


def _over(phase: RolloutPhase) -> _Rows:
    """The rows of a phase in which no rollout is open."""
    return {
        (phase, Exported): Row(
            start_transitions.exported,
            (_O, "mode staged"),
            (phase, "mode newest: all at once; manual: noted"),
        ),
        (phase, Create): Row(start_transitions.create, (_O, "by the operator")),
        (phase, RolloutTick): Row(start_transitions.idle, (_O, "one waited")),
        (phase, Cleared): Row(start_transitions.cleared, (phase, "noted")),
        (phase, Pause): Row(start_transitions.closed, (phase, "refused")),
        (phase, Resume): Row(start_transitions.closed, (phase, "refused")),
        (phase, Abort): Row(start_transitions.closed, (phase, "refused")),
    }


_ROWS: Final[_Rows] = {
    **{
        (phase, Begun): Row(start_transitions.begun, (phase, "what was announced before is stable"))
        for phase in RolloutPhase
    },
    **_over(_N),
    (_O, RolloutTick): Row(
        transitions.tick,
        (_O, "fill the stage; next stage after the soak"),
        (_C, "the last stage passed"),
        (_F, "too many devices failed"),
        (_P, "deadline"),
    ),
    (_O, Exported): Row(start_transitions.exported, (_O, "waits; the newest one wins")),
    (_O, Create): Row(start_transitions.create, (_O, "refused")),
    (_O, Pause): Row(transitions.pause, (_P, "by the operator")),
    (_O, Resume): Row(transitions.going, (_O, "it goes on already")),
    (_O, Abort): Row(transitions.abort, (_A, "by the operator")),
    (_P, RolloutTick): Row(transitions.watch, (_P, "listen"), (_F, "too many devices failed")),
    (_P, Exported): Row(start_transitions.exported, (_P, "waits; the newest one wins")),
    (_P, Create): Row(start_transitions.create, (_P, "refused")),
    (_P, Pause): Row(transitions.again, (_P, "it is paused already")),
    (_P, Resume): Row(transitions.resume, (_O, "by the operator")),
    (_P, Abort): Row(transitions.abort, (_A, "by the operator")),
    **_over(_C),
    **_over(_F),
    **_over(_A),
}
TABLE: Final = StateTable(_ROWS, first=_N, alike=(_N, _C, _F, _A))


def apply(course: RolloutState, event: Event, now: float) -> Outcome:
    """Apply an event.

    Args:
        course: the decisions so far.
        event: what happened.
        now: Unix seconds.

    Returns:
        The state after, and the commands. The same object if the event changes nothing.

    Raises:
        Refused: the operator's request is not possible now.
    """
    handler = TABLE.handler(course.phase, event)
    return (course, ()) if handler is None else handler(course, event, now)
