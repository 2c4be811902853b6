"""The reports on attempts of secure rounds, as a table of the coordinator's database."""

from collections.abc import Iterable

import sqlalchemy as sa

from coordinator.secure_aggregation.report import SecureReport
from coordinator.storage import schema
from coordinator.storage.database import Database


class SecureReports:
    """Writes the table. Synchronous, thread-safe."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def write(self, round_: int, report: SecureReport, wall: float) -> None:
        """Store how an attempt stands; ``wall``: Unix seconds.

        Raises:
            Transient: it cannot be stored now.
        """
        row = {"round": round_, "attempt": report.attempt, "wall": wall}
        self._store.put(schema.secure_rounds, **row, report=report.model_dump(mode="json"))


def reports_of(store: Database, rounds: Iterable[int]) -> dict[int, tuple[SecureReport, ...]]:
    """The reports on some rounds, by round; the attempts in their order."""
    table, found = schema.secure_rounds, dict[int, tuple[SecureReport, ...]]()
    query = sa.select(table.c.round, table.c.report).where(table.c.round.in_(list(rounds)))
    for row in store.rows(query.order_by(table.c.round, table.c.attempt)):
        found[row["round"]] = (*found.get(row["round"], ()), SecureReport.model_validate(row["report"]))
    return found


def newest_words(store: Database, round_: int) -> str:
    """The stage of the newest attempt of a round, in words; empty: the round is not secure."""
    reports = reports_of(store, [round_]).get(round_, ())
    return reports[-1].words if reports else ""
