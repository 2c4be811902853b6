"""A device in a secure round: pure, and a table. ``apply(rules, state, event) -> (state, commands)``.

Events that are not in the table are ignored. A wrong one that is in it is refused in words; the state stays.
The caller stores the new state before it carries the commands out. ``docs/secure-aggregation-state.md``
shows the table.
"""

from collections.abc import Callable
from typing import Any, Final

from edge_agent.secure_aggregation import transitions
from edge_agent.secure_aggregation.events import (
    AttemptEnded,
    DeliveryCame,
    MaskingEvent,
    MaskingInvited,
    MaskingOutcome,
    MaskingPhase,
    MaskingResumed,
    MaskingRules,
    MaskingState,
    RosterCame,
    SurvivorsCame,
    UpdateMasked,
)
from runtime.state_table import Row, StateTable

Handler = Callable[[MaskingRules, MaskingState, Any], MaskingOutcome]


def apply(rules: MaskingRules, state: MaskingState, event: MaskingEvent) -> MaskingOutcome:
    """Apply an event.

    Args:
        rules: of the device and the task.
        state: before.
        event: what happened.

    Returns:
        The state after it, and the commands. The same object if the event changes nothing.

    Raises:
        Refused: the message is wrong, of another attempt, or asks for what a device never tells.
    """
    handler = TABLE.handler(state.phase, event)
    return (state, ()) if handler is None else handler(rules, state, event)


_I, _K, _S = MaskingPhase.IDLE, MaskingPhase.KEYS, MaskingPhase.SHARES
_M, _D, _R = MaskingPhase.MASKING, MaskingPhase.MASKED, MaskingPhase.REVEALED

_ROWS: Final[dict[tuple[MaskingPhase, type[MaskingEvent]], Row[MaskingPhase, Handler]]] = {
    (_I, MaskingInvited): Row(transitions.invite, (_K, "the update is ready")),
    **{
        (phase, MaskingInvited): Row(
            transitions.invite, (phase, "says it again"), (_K, "a new attempt, new keys")
        )
        for phase in (_K, _S, _M, _D, _R)
    },
    (_K, RosterCame): Row(transitions.share, (_S, "neighbours are sound")),
    (_S, RosterCame): Row(transitions.same_roster, (_S, "the same: says it again")),
    (_S, DeliveryCame): Row(transitions.mask, (_M, "enough neighbours")),
    (_M, DeliveryCame): Row(transitions.same_shares, (_M, "the same: masks again")),
    (_M, UpdateMasked): Row(transitions.masked, (_D, "stored")),
    (_D, DeliveryCame): Row(transitions.same_shares, (_D, "the same: sends it again")),
    (_D, SurvivorsCame): Row(transitions.reveal, (_R, "one share for each neighbour")),
    (_R, SurvivorsCame): Row(transitions.same_survivors, (_R, "the same: says it again")),
    **{
        (phase, MaskingResumed): Row(transitions.resume, (phase, "says again what it said last"))
        for phase in (_K, _S, _M, _D, _R)
    },
    **{
        (phase, AttemptEnded): Row(transitions.end, (_I, "secrets are forgotten"))
        for phase in (_K, _S, _M, _D, _R)
    },
}
TABLE: Final = StateTable(_ROWS, first=_I)
