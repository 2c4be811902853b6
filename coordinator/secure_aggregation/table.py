"""The coordinator in a secure round: pure, and a table. ``apply(rules, state, event, now)``.

Events that are not in the table are ignored: what comes after its stage is too late, and does no harm. The
caller stores the new state before it carries the commands out. ``docs/secure-aggregation-state.md``
shows the table.
"""

from collections.abc import Callable
from typing import Any, Final

from coordinator.secure_aggregation import transitions
from coordinator.secure_aggregation.events import (
    KeysCame,
    MaskedCame,
    RevealCame,
    SecureEvent,
    SecureOutcome,
    SecurePhase,
    SecureResumed,
    SecureRules,
    SecureState,
    SharesCame,
    StageTick,
    SumSpoilt,
)
from runtime.state_table import Row, StateTable

Handler = Callable[[SecureRules, SecureState, Any, float], SecureOutcome]


def apply(rules: SecureRules, state: SecureState, event: SecureEvent, now: float) -> SecureOutcome:
    """Apply an event.

    Args:
        rules: of the attempt.
        state: before.
        event: what happened; a message was checked, and is stored with the new state.
        now: seconds on the driver's time line.

    Returns:
        The state after it, and the commands.

    Raises:
        Refused: the device does not take part, or there is no room for it.
    """
    handler = TABLE.handler(state.phase, event)
    return (state, ()) if handler is None else handler(rules, state, event, now)


_K, _S, _M, _U = SecurePhase.KEYS, SecurePhase.SHARES, SecurePhase.MASKED, SecurePhase.UNMASK
_D, _F = SecurePhase.DONE, SecurePhase.FAILED
_FEW: Final = (_F, "too few are left: fails closed")

_ROWS: Final[dict[tuple[SecurePhase, type[SecureEvent]], Row[SecurePhase, Handler]]] = {
    (_K, KeysCame): Row(transitions.add_keys, (_K, "more are expected"), (_S, "all: rosters are sent"), _FEW),
    (_K, StageTick): Row(transitions.tick_keys, (_K, "in time"), (_S, "deadline, enough"), _FEW),
    (_S, SharesCame): Row(transitions.add_shares, (_S, "more are expected"), (_M, "all: delivered"), _FEW),
    (_S, StageTick): Row(transitions.tick_shares, (_S, "in time"), (_M, "deadline, enough"), _FEW),
    (_M, MaskedCame): Row(
        transitions.add_masked, (_M, "more are expected"), (_U, "all: the survivors are fixed"), _FEW
    ),
    (_M, StageTick): Row(
        transitions.tick_masked, (_M, "in time"), (_U, "deadline, enough: the survivors are fixed"), _FEW
    ),
    (_U, RevealCame): Row(transitions.add_reveal, (_U, "more are expected"), (_D, "all: the sum is opened")),
    (_U, StageTick): Row(
        transitions.tick_unmask, (_U, "in time"), (_D, "deadline, enough: the sum is opened"), _FEW
    ),
    (_D, SumSpoilt): Row(transitions.spoil, (_F, "a share or a vector is forged: no version")),
    **{(phase, SecureResumed): Row(transitions.resume, (phase, "says it again")) for phase in SecurePhase},
}
TABLE: Final = StateTable(_ROWS, first=_K)
