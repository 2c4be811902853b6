"""The work that a phase waits for. Pure."""

from collections.abc import Callable
from typing import Final

from coordinator.round_machine.commands import (
    Aggregate,
    Command,
    Evaluate,
    Export,
    Finish,
    Initialise,
    OfferRound,
)
from coordinator.round_machine.events import RoundPhase, RoundState


def pending(state: RoundState) -> tuple[Command, ...]:
    """The command that the present phase waits for; repeated after a restart or a failure."""
    made = _WORK.get(state.phase)
    return () if made is None else (made(state),)


_WORK: Final[dict[RoundPhase, Callable[[RoundState], Command]]] = {
    RoundPhase.INITIALISING: lambda _: Initialise(),
    RoundPhase.COLLECTING: lambda _: OfferRound(),
    RoundPhase.AGGREGATING: lambda state: Aggregate(round=state.round, devices=tuple(state.delivered)),
    RoundPhase.EVALUATING: lambda state: Evaluate(version=state.version),
    RoundPhase.EXPORTING: lambda state: Export(version=state.version),
    RoundPhase.DONE: lambda _: Finish(),
}
