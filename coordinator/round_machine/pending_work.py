"""The work that a phase waits for. Pure."""

from coordinator.round_machine.events import (
    Aggregate,
    Command,
    Evaluate,
    Export,
    Finish,
    Initialise,
    RoundPhase,
    RoundState,
    SendOffers,
)


def pending(state: RoundState) -> tuple[Command, ...]:
    """The command that the present phase waits for; repeated after a restart or a failure."""
    work: dict[RoundPhase, Command] = {
        RoundPhase.INITIALISING: Initialise(),
        RoundPhase.COLLECTING: SendOffers(devices=state.missing),
        RoundPhase.AGGREGATING: Aggregate(round=state.round, devices=state.delivered),
        RoundPhase.EVALUATING: Evaluate(version=state.version),
        RoundPhase.EXPORTING: Export(version=state.version),
        RoundPhase.DONE: Finish(),
    }
    return (work[state.phase],) if state.phase in work else ()
