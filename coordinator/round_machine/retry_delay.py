"""Delay before failed work is tried again, and when it is given up. Pure."""

from typing import Final

from coordinator.round_machine.events import RoundPhase, RoundState, WorkFailed
from runtime.pacing import backoff_s

_RETRY_S: Final = 2.0
_RETRY_MAX_S: Final = 300.0
_PAUSES_S: Final = (5.0, 30.0, 120.0)
"""Delays before each further attempt to evaluate or export a version."""


def retry_delay_s(state: RoundState, event: WorkFailed) -> float | None:
    """Seconds until the work is tried again; None: the rounds go on without it.

    Without a model nothing can go on, so that is tried for ever. Evaluation and export must not halt the
    rounds: they are tried again a few times, and only if the failure may pass (a full disk).
    """
    if state.phase not in (RoundPhase.EVALUATING, RoundPhase.EXPORTING):
        return backoff_s(_RETRY_S, _RETRY_MAX_S, state.failures)
    if not event.passing or state.failures >= len(_PAUSES_S):
        return None
    return _PAUSES_S[state.failures]
