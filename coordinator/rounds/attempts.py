"""Every opening of a round, for the history: who was selected and why, and how it ended."""

from typing import Final

from coordinator import schema
from coordinator.rounds.choosing import Chosen
from coordinator.rounds.states import RecordAttempt, Select
from coordinator.store import Store
from runtime.clock import Clock

_KEPT: Final = 100
"""Of one round: one without quorum may be tried for ever."""


class Attempts:
    """Writes ``schema.attempts``. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def opened(self, command: Select, chosen: Chosen) -> None:
        """An attempt begins."""
        table = schema.attempts
        with self._store.transaction() as connection:
            old = (table.c.round == command.round) & (table.c.attempt <= command.attempt - _KEPT)
            connection.execute(table.delete().where(old))
        self._store.put(
            table,
            round=command.round,
            attempt=command.attempt,
            opened_wall=self._clock.wall(),
            closed_wall=None,
            selected=sorted(chosen.why),
            why=chosen.why,
            outcome="",
            policy=chosen.policy,
            passed=chosen.passed,
        )

    def closed(self, command: RecordAttempt) -> None:
        """An attempt is over."""
        table = schema.attempts
        where = (table.c.round == command.round) & (table.c.attempt == command.attempt)
        values = {"outcome": command.outcome, "closed_wall": self._clock.wall()}
        with self._store.transaction() as connection:
            connection.execute(table.update().where(where).values(**values))
