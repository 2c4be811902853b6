"""The stage of a secure round in words. Pure."""

from coordinator.secure_aggregation.events import SecureState
from protocol.secure_aggregation.attempt import Attempt


def words_of(attempt: Attempt, state: SecureState) -> str:
    """How far an attempt is, and how many devices are in each stage; why it has failed, if it has."""
    counts = (
        f"{len(state.joined)} devices with keys, {len(state.shared)} with shares, {len(state.going)} told to "
        f"mask, {len(state.survivors)} in the sum, {len(state.revealed)} have answered"
    )
    stage = state.phase.value.replace("_", " ")
    return f"attempt {attempt.attempt}, stage {stage}: {counts}" + (f"; {state.why}" if state.why else "")
