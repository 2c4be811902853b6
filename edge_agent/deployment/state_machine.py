"""The machine of a device's rollout: pure, and a table. ``apply(standing, event) -> (standing, commands)``.

What is not in the table is ignored: an event that comes late, twice or never asked for does no harm.
``docs/rollout-state.md`` is drawn from the table (:func:`diagram`, :func:`listing`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.deployment import transitions
from edge_agent.deployment.events import (
    BundleRefused,
    Crashed,
    Damaged,
    DeploymentPhase,
    DeploymentStatus,
    DeploymentTick,
    Event,
    Fetched,
    Loaded,
    Outcome,
    Pointed,
    PointerRejected,
    Started,
    Stopped,
    Withdrawn,
)
from edge_agent.deployment.pointer_rules import on_pointer
from edge_agent.inference.onnx_models.observation import BatchObservation
from runtime import state_table

Handler = Callable[[DeploymentStatus, Any], Outcome]


def apply(standing: DeploymentStatus, event: Event) -> Outcome:
    """What follows from an event.

    Args:
        standing: before.
        event: what happened; time comes in as :class:`DeploymentTick`.

    Returns:
        After, and what is to be done about it. The same object where the event changes nothing.
    """
    row = TABLE.get((standing.phase, type(event)))
    return (standing, ()) if row is None else row.handler(standing, event)


@dataclass(frozen=True, slots=True)
class DeploymentRow:
    """A cell of the table: who decides, and every phase it may lead to, with the reason in words."""

    handler: Handler
    to: tuple[tuple[DeploymentPhase, str], ...]


_N, _F, _T, _C = (
    DeploymentPhase.NONE,
    DeploymentPhase.FETCHED,
    DeploymentPhase.ON_TRIAL,
    DeploymentPhase.COMMITTED,
)
_BACK: Final = ((_C, "back to the one before"), (_N, "there is none before"))
_GONE: Final = ((_C, "withdrawn"), (_N, "withdrawn, none before"))

TABLE: Final[dict[tuple[DeploymentPhase, type[Event]], DeploymentRow]] = {
    (_N, Pointed): DeploymentRow(on_pointer, ((_N, "pull it, or not"),)),
    (_N, PointerRejected): DeploymentRow(transitions.decline, ((_N, "reported"),)),
    (_N, Fetched): DeploymentRow(transitions.start_trial, ((_F, "the first model"),)),
    (_C, Pointed): DeploymentRow(on_pointer, ((_C, "pull it, or not"),)),
    (_C, PointerRejected): DeploymentRow(transitions.decline, ((_C, "reported"),)),
    (_C, Fetched): DeploymentRow(transitions.start_trial, ((_F, "named in the book, then loaded"),)),
    (_C, Damaged): DeploymentRow(transitions.forget_damaged, ((_C, "the one before"), (_N, "none before"))),
    (_F, Started): DeploymentRow(transitions.begin, ((_F, "once more, counted first"), *_BACK)),
    (_F, Loaded): DeploymentRow(transitions.swap, ((_T, "tried once; it answers"),)),
    (_F, BundleRefused): DeploymentRow(transitions.refuse, _BACK),
    (_F, Pointed): DeploymentRow(on_pointer, ((_F, "goes on"), *_GONE)),
    (_F, Fetched): DeploymentRow(transitions.start_trial, ((_F, "a later decision"),)),
    (_F, Withdrawn): DeploymentRow(transitions.withdraw, _GONE),
    (_F, Damaged): DeploymentRow(transitions.forget_damaged, ((_F, "one before is lost"), *_GONE)),
    (_F, Stopped): DeploymentRow(transitions.stop, ((_F, "not counted as a start"),)),
    (_T, BatchObservation): DeploymentRow(
        transitions.judge, ((_T, "more are needed"), (_C, "healthy; or back"), (_N, "none before"))
    ),
    (_T, DeploymentTick): DeploymentRow(
        transitions.wait, ((_T, "in time"), (_C, "late: judged by those that came"), (_N, "as well"))
    ),
    (_T, Crashed): DeploymentRow(transitions.give_up, _BACK),
    (_T, Pointed): DeploymentRow(
        on_pointer, ((_T, "goes on"), (_C, "withdrawn, or judged"), (_N, "as well, none before"))
    ),
    (_T, Fetched): DeploymentRow(transitions.start_trial, ((_F, "a later decision"),)),
    (_T, Withdrawn): DeploymentRow(transitions.withdraw, _GONE),
    (_T, Damaged): DeploymentRow(transitions.forget_damaged, ((_T, "one before is lost"), *_GONE)),
    (_T, Stopped): DeploymentRow(transitions.stop, ((_T, "not counted as a start"),)),
}


def diagram() -> str:
    """The table as a mermaid state diagram: every step from one phase to another."""
    return state_table.diagram(TABLE, _N)


def listing() -> str:
    """The whole table in Markdown, with what leaves the phase as it is."""
    return state_table.listing(TABLE)
