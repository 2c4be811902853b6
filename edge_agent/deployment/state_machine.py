"""The machine of a device's rollout: pure, and a table. ``apply(standing, event) -> (standing, commands)``.

What is not in the table is ignored: an event that comes late, twice or never asked for does no harm.
``docs/rollout-state.md`` shows the table.
"""

from collections.abc import Callable
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
from runtime.state_table import Row, StateTable

Handler = Callable[[DeploymentStatus, Any], Outcome]


def apply(standing: DeploymentStatus, event: Event) -> Outcome:
    """What follows from an event.

    Args:
        standing: before.
        event: what happened; time comes in as :class:`DeploymentTick`.

    Returns:
        After, and what is to be done about it. The same object where the event changes nothing.
    """
    handler = TABLE.handler(standing.phase, event)
    return (standing, ()) if handler is None else handler(standing, event)


_N, _F, _T, _C = (
    DeploymentPhase.NONE,
    DeploymentPhase.FETCHED,
    DeploymentPhase.ON_TRIAL,
    DeploymentPhase.COMMITTED,
)
_BACK: Final = ((_C, "back to the one before"), (_N, "there is none before"))
_GONE: Final = ((_C, "withdrawn"), (_N, "withdrawn, none before"))

_ROWS: Final[dict[tuple[DeploymentPhase, type[Event]], Row[DeploymentPhase, Handler]]] = {
    (_N, Pointed): Row(on_pointer, (_N, "pull it, or not")),
    (_N, PointerRejected): Row(transitions.decline, (_N, "reported")),
    (_N, Fetched): Row(transitions.start_trial, (_F, "the first model")),
    (_C, Pointed): Row(on_pointer, (_C, "pull it, or not")),
    (_C, PointerRejected): Row(transitions.decline, (_C, "reported")),
    (_C, Fetched): Row(transitions.start_trial, (_F, "named in the book, then loaded")),
    (_C, Damaged): Row(transitions.forget_damaged, (_C, "the one before"), (_N, "none before")),
    (_F, Started): Row(transitions.begin, (_F, "once more, counted first"), *_BACK),
    (_F, Loaded): Row(transitions.swap, (_T, "tried once; it answers")),
    (_F, BundleRefused): Row(transitions.refuse, *_BACK),
    (_F, Pointed): Row(on_pointer, (_F, "goes on"), *_GONE),
    (_F, Fetched): Row(transitions.start_trial, (_F, "a later decision")),
    (_F, Withdrawn): Row(transitions.withdraw, *_GONE),
    (_F, Damaged): Row(transitions.forget_damaged, (_F, "one before is lost"), *_GONE),
    (_F, Stopped): Row(transitions.stop, (_F, "not counted as a start")),
    (_T, BatchObservation): Row(
        transitions.judge, (_T, "more are needed"), (_C, "healthy; or back"), (_N, "none before")
    ),
    (_T, DeploymentTick): Row(
        transitions.wait, (_T, "in time"), (_C, "late: judged by those that came"), (_N, "as well")
    ),
    (_T, Crashed): Row(transitions.give_up, *_BACK),
    (_T, Pointed): Row(
        on_pointer, (_T, "goes on"), (_C, "withdrawn, or judged"), (_N, "as well, none before")
    ),
    (_T, Fetched): Row(transitions.start_trial, (_F, "a later decision")),
    (_T, Withdrawn): Row(transitions.withdraw, *_GONE),
    (_T, Damaged): Row(transitions.forget_damaged, (_T, "one before is lost"), *_GONE),
    (_T, Stopped): Row(transitions.stop, (_T, "not counted as a start")),
}
TABLE: Final = StateTable(_ROWS, first=_N)
