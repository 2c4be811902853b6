"""The leader's side of updates that other processes accept."""

from dataclasses import dataclass, replace

from coordinator.intake.intake_table import Arrivals, Intake, IntakeTable, intake_of
from coordinator.round_machine import table
from coordinator.round_machine.commands import Command
from coordinator.round_machine.events import Event, RoundState, Rules, UpdateRefused, UpdatesAccepted


@dataclass(frozen=True, slots=True)
class CountResult:
    """The round machine after what others did: its state, the events that changed it, their commands."""

    state: RoundState
    events: tuple[Event, ...]
    commands: tuple[Command, ...]


def count(rules: Rules, state: RoundState, arrivals: Arrivals, now: float) -> CountResult:
    """Apply what other processes did with updates of the open round. Pure.

    Args:
        rules: of the round machine.
        state: before.
        arrivals: what it does not know yet.
        now: on the driver's time line.
    """
    accepted = UpdatesAccepted(round=state.round, devices=arrivals.accepted)
    refused: list[Event] = [
        UpdateRefused(device=device, round=state.round, reason=reason) for device, reason in arrivals.refused
    ]
    events: list[Event] = []
    commands: tuple[Command, ...] = ()
    for event in (accepted, *refused):
        before = state
        state, asked = table.apply(rules, before, event, now)
        commands += asked
        if state is not before:
            events.append(event)
    return CountResult(state, tuple(events), commands)


class OutsideUpdates:
    """What the driver of the rounds needs to count them. Synchronous; it calls this under its lock."""

    def __init__(self, intake: IntakeTable) -> None:
        self._table = intake
        self._written: Intake | None = None
        self.held = False
        """Nothing is accepted, whatever the state says: an event is about to end the intake."""

    def arrivals(self, state: RoundState) -> Arrivals:
        """What the round machine does not know yet."""
        return self._table.arrivals(state.round)

    @staticmethod
    def ends(before: RoundState, after: RoundState) -> bool:
        """Whether nothing more may be accepted before the machine leaves ``before`` for ``after``."""
        taken = intake_of(before)
        return taken.taking and intake_of(after) != taken

    def ended_by(self, event: Event, rules: Rules, state: RoundState, now: float) -> bool:
        """Whether nothing more may be accepted before this event."""
        return self.ends(state, table.apply(rules, state, event, now)[0])

    def close(self, state: RoundState) -> Arrivals:
        """Let nothing more be accepted; what the round machine does not know yet is complete then."""
        self.held, self._written = True, None
        return self._table.close(state.round)

    def _wanted(self, state: RoundState) -> Intake:
        wanted = intake_of(state)
        return replace(wanted, taking=False) if self.held else wanted

    def differs(self, state: RoundState) -> bool:
        """Whether the other processes may accept something else than they should."""
        return self._written != self._wanted(state)

    def write(self, state: RoundState) -> None:
        """Let the other processes accept what this state takes; in the transaction of its event."""
        self._table.write(self._wanted(state))

    def wrote(self, state: RoundState) -> None:
        """The transaction of :meth:`write` is on disk."""
        self._written = self._wanted(state)

    def known(self, state: RoundState, arrivals: Arrivals) -> None:
        """The round machine knows these now; in the transaction of their event."""
        self._table.known(state.round, arrivals)
