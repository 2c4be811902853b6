"""The state machine of a device's rollout: pure, and a table. ``apply(status, event) -> (status, commands)``.

Events that are not in the table are ignored: one that is late, repeated or unexpected does no harm.
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


def apply(status: DeploymentStatus, event: Event) -> Outcome:
    """Apply an event.

    Args:
        status: before.
        event: what happened; time comes in as :class:`DeploymentTick`.

    Returns:
        The status after it, and the commands. The same object if the event changes nothing.
    """
    handler = TABLE.handler(status.phase, event)
    return (status, ()) if handler is None else handler(status, event)


_N, _F, _T, _C = (
    DeploymentPhase.NONE,
    DeploymentPhase.FETCHED,
    DeploymentPhase.ON_TRIAL,
    DeploymentPhase.COMMITTED,
)
_BACK: Final = ((_C, "back to the former model"), (_N, "there is no former model"))
_GONE: Final = ((_C, "withdrawn"), (_N, "withdrawn, no former model"))

_ROWS: Final[dict[tuple[DeploymentPhase, type[Event]], Row[DeploymentPhase, Handler]]] = {
    (_N, Pointed): Row(on_pointer, (_N, "fetch it, or not")),
    (_N, PointerRejected): Row(transitions.decline, (_N, "reported")),
    (_N, Fetched): Row(transitions.start_trial, (_F, "the first model")),
    (_C, Pointed): Row(on_pointer, (_C, "fetch it, or not")),
    (_C, PointerRejected): Row(transitions.decline, (_C, "reported")),
    (_C, Fetched): Row(transitions.start_trial, (_F, "recorded, then loaded")),
    (_C, Damaged): Row(transitions.forget_damaged, (_C, "the former model"), (_N, "no former model")),
    (_F, Started): Row(transitions.begin, (_F, "loaded again, counted first"), *_BACK),
    (_F, Loaded): Row(transitions.swap, (_T, "tried once; active")),
    (_F, BundleRefused): Row(transitions.refuse, *_BACK),
    (_F, Pointed): Row(on_pointer, (_F, "goes on"), *_GONE),
    (_F, Fetched): Row(transitions.start_trial, (_F, "a later decision")),
    (_F, Withdrawn): Row(transitions.withdraw, *_GONE),
    (_F, Damaged): Row(transitions.forget_damaged, (_F, "former model is lost"), *_GONE),
    (_F, Stopped): Row(transitions.stop, (_F, "not counted as a start")),
    (_T, BatchObservation): Row(
        transitions.judge, (_T, "more are needed"), (_C, "healthy; or back"), (_N, "no former model")
    ),
    (_T, DeploymentTick): Row(
        transitions.wait,
        (_T, "in time"),
        (_C, "deadline: judged by the answers so far"),
        (_N, "no former model"),
    ),
    (_T, Crashed): Row(transitions.give_up, *_BACK),
    (_T, Pointed): Row(
        on_pointer, (_T, "goes on"), (_C, "withdrawn, or judged"), (_N, "as well, no former model")
    ),
    (_T, Fetched): Row(transitions.start_trial, (_F, "a later decision")),
    (_T, Withdrawn): Row(transitions.withdraw, *_GONE),
    (_T, Damaged): Row(transitions.forget_damaged, (_T, "former model is lost"), *_GONE),
    (_T, Stopped): Row(transitions.stop, (_T, "not counted as a start")),
}
TABLE: Final = StateTable(_ROWS, first=_N)
