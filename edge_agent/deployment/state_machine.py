"""The machine of a device's rollout: pure, and a table. ``apply(standing, event) -> (standing, commands)``.

What is not in the table is ignored: an event that comes late, twice or never asked for does no harm.
``docs/rollout-state.md`` is drawn from the table (:func:`diagram`, :func:`listing`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.deployment import transitions
from edge_agent.deployment.events import (
    Damaged,
    Declined,
    Event,
    Fetched,
    GivenUp,
    Loaded,
    Outcome,
    Phase,
    Pointed,
    Refused,
    Standing,
    Started,
    Stopped,
    Tick,
    Withdrawn,
)
from edge_agent.deployment.pointer_rules import point
from edge_agent.inference.onnx_models.observation import Seen
from runtime import state_table

Handler = Callable[[Standing, Any], Outcome]


def apply(standing: Standing, event: Event) -> Outcome:
    """What follows from an event.

    Args:
        standing: before.
        event: what happened; time comes in as :class:`Tick`.

    Returns:
        After, and what is to be done about it. The same object where the event changes nothing.
    """
    row = TABLE.get((standing.phase, type(event)))
    return (standing, ()) if row is None else row.handler(standing, event)


@dataclass(frozen=True, slots=True)
class Row:
    """A cell of the table: who decides, and every phase it may lead to, with the reason in words."""

    handler: Handler
    to: tuple[tuple[Phase, str], ...]


_N, _F, _T, _C = Phase.NONE, Phase.FETCHED, Phase.ON_TRIAL, Phase.COMMITTED
_BACK: Final = ((_C, "back to the one before"), (_N, "there is none before"))
_GONE: Final = ((_C, "withdrawn"), (_N, "withdrawn, none before"))

TABLE: Final[dict[tuple[Phase, type[Event]], Row]] = {
    (_N, Pointed): Row(point, ((_N, "pull it, or not"),)),
    (_N, Declined): Row(transitions.decline, ((_N, "reported"),)),
    (_N, Fetched): Row(transitions.take, ((_F, "the first model"),)),
    (_C, Pointed): Row(point, ((_C, "pull it, or not"),)),
    (_C, Declined): Row(transitions.decline, ((_C, "reported"),)),
    (_C, Fetched): Row(transitions.take, ((_F, "named in the book, then loaded"),)),
    (_C, Damaged): Row(transitions.lose, ((_C, "the one before"), (_N, "none before"))),
    (_F, Started): Row(transitions.begin, ((_F, "once more, counted first"), *_BACK)),
    (_F, Loaded): Row(transitions.swap, ((_T, "tried once; it answers"),)),
    (_F, Refused): Row(transitions.refuse, _BACK),
    (_F, Pointed): Row(point, ((_F, "goes on"), *_GONE)),
    (_F, Fetched): Row(transitions.take, ((_F, "a later decision"),)),
    (_F, Withdrawn): Row(transitions.withdraw, _GONE),
    (_F, Damaged): Row(transitions.lose, ((_F, "one before is lost"), *_GONE)),
    (_F, Stopped): Row(transitions.stop, ((_F, "not counted as a start"),)),
    (_T, Seen): Row(
        transitions.judge, ((_T, "more are needed"), (_C, "healthy; or back"), (_N, "none before"))
    ),
    (_T, Tick): Row(
        transitions.wait, ((_T, "in time"), (_C, "late: judged by those that came"), (_N, "as well"))
    ),
    (_T, GivenUp): Row(transitions.give_up, _BACK),
    (_T, Pointed): Row(point, ((_T, "goes on"), (_C, "withdrawn, or judged"), (_N, "as well, none before"))),
    (_T, Fetched): Row(transitions.take, ((_F, "a later decision"),)),
    (_T, Withdrawn): Row(transitions.withdraw, _GONE),
    (_T, Damaged): Row(transitions.lose, ((_T, "one before is lost"), *_GONE)),
    (_T, Stopped): Row(transitions.stop, ((_T, "not counted as a start"),)),
}


def diagram() -> str:
    """The table as a mermaid state diagram: every step from one phase to another."""
    return state_table.diagram(TABLE, _N)


def listing() -> str:
    """The whole table in Markdown, with what leaves the phase as it is."""
    return state_table.listing(TABLE)
