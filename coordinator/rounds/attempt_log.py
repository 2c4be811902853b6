"""Log of attempts, for the history: the selected devices and why, and the outcome."""

from itertools import islice
from typing import Final

from coordinator.round_machine.commands import RecordAttempt, Select
from coordinator.selection.selector import SelectedDevices
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import MOST_NAMED, listed
from runtime.clock import Clock

_MAX_ATTEMPTS: Final = 100
"""Attempts stored of one round: one without quorum may be tried for ever."""


class Attempts:
    """Writes ``schema.attempts``. Thread-safe. A row names 256 devices at most, whatever the fleet."""

    def __init__(self, store: Database, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def opened(self, command: Select, chosen: SelectedDevices) -> None:
        """An attempt begins."""
        table = schema.attempts
        with self._store.transaction() as connection:
            old = (table.c.round == command.round) & (table.c.attempt <= command.attempt - _MAX_ATTEMPTS)
            connection.execute(table.delete().where(old))
        self._store.put(
            table,
            round=command.round,
            attempt=command.attempt,
            opened_wall=self._clock.wall(),
            closed_wall=None,
            selected=listed(sorted(chosen.why), whole=chosen.looked_back),
            why=dict(islice(sorted(chosen.why.items()), MOST_NAMED)),
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
