"""The work that a phase waits for. Pure."""

from coordinator.round_machine.events import (
    Aggregate,
    Command,
    Evaluate,
    Export,
    Finish,
    Initialise,
    Phase,
    RoundState,
    SendOffers,
)


def pending(state: RoundState) -> tuple[Command, ...]:
    """The work that the present phase waits for; asked for again after a restart or a failure."""
    work: dict[Phase, Command] = {
        Phase.INITIALISING: Initialise(),
        Phase.COLLECTING: SendOffers(devices=state.missing),
        Phase.AGGREGATING: Aggregate(round=state.round, devices=state.delivered),
        Phase.EVALUATING: Evaluate(version=state.version),
        Phase.EXPORTING: Export(version=state.version),
        Phase.DONE: Finish(),
    }
    return (work[state.phase],) if state.phase in work else ()
