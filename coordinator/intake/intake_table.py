"""Updates that other processes accept for the leader: what they may accept, and what they have accepted.

The leader writes one row: the open round, its base, and whether it takes updates. A process that accepts
updates compares that row in the transaction of its updates, and locks it until the commit. The leader closes
the intake in a transaction of its own before it closes a round: whatever was accepted until then is counted,
and nothing is accepted afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from coordinator.round_machine.batch import Key, ReceivedUpdate
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.update_journal import Journal, row_of

_ROW: Final = 1


@dataclass(frozen=True, slots=True)
class Intake:
    """What may be accepted: updates of a round, on a base (the digest of a version's manifest)."""

    round: int = -1
    manifest: str = ""
    taking: bool = False


def intake_of(state: RoundState) -> Intake:
    """What a round machine in this state takes, as ``round_machine.queries.check_acceptable`` has it."""
    taking = state.phase is RoundPhase.COLLECTING or (
        state.phase is RoundPhase.WAITING and bool(state.invited)
    )
    return Intake(state.round, state.manifest, taking)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What the round machine does not know yet.

    Attributes:
        accepted: devices whose update was accepted, sorted.
        refused: devices whose update was refused for its content, and the reason.
    """

    accepted: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.accepted or self.refused)


class IntakeTable:
    """The tables between the leader and the processes that accept updates. Synchronous and thread-safe."""

    def __init__(self, store: Database, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    def read(self) -> Intake:
        """What may be accepted now, as of the last commit."""
        with self._store.transaction() as connection:
            return _read(connection, lock=False)

    def write(self, intake: Intake) -> None:
        """Set what may be accepted; the leader alone, in the transaction of its event."""
        values = {"round": intake.round, "manifest": intake.manifest, "taking": int(intake.taking)}
        self._store.put(schema.intake, id=_ROW, **values)

    def accept(self, expected: Intake, group: Sequence[ReceivedUpdate], wall: float) -> dict[Key, str] | None:
        """Write updates that are not counted yet, in one transaction.

        Args:
            expected: what the group was checked against.
            group: at most one update a device; the frames are on disk.
            wall: Unix seconds, for the rows.

        Returns:
            The digest that counts, by round and device: the update's own, or that of an earlier one. None:
            the intake is another one, and nothing was written.

        Raises:
            Transient: the database failed; nothing was written.
        """
        with self._store.transaction(write=True) as connection:
            if _read(connection, lock=True) != expected or not expected.taking:
                return None
            rows = [row_of(one, wall) for one in group]
            # sorted: two processes that insert the same devices must not wait for each other
            self._insert(connection, sorted(rows, key=lambda row: str(row["device"])))
            counts = self._journal.digests({one.key for one in group})
            mine = [one for one in group if counts.get(one.key) == one.digest]
            if not mine:
                return counts
            _forget_withdrawn(connection, mine)
            self._journal.record_messages(mine)
            arrived = [{"round": one.header.round, "device": one.header.device, "reason": ""} for one in mine]
            self._store.insert_new(schema.arrivals, arrived)
            return counts

    def _insert(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        """The unique key (round, device) counts a device once; only a withdrawn update is replaced."""
        table = schema.updates
        statement = self._store.insert(table)
        rest = {name: statement.excluded[name] for name in rows[0] if name not in {"round", "device"}}
        replacing = statement.on_conflict_do_update(
            index_elements=["round", "device"], set_=rest, where=table.c.lost != ""
        )
        connection.execute(replacing, rows)

    def spoil(self, round_: int, device: str, reason: str) -> None:
        """Tell the leader that an update was refused for its content."""
        self._store.insert_new(schema.arrivals, [{"round": round_, "device": device, "reason": reason}])

    def arrivals(self, round_: int) -> Arrivals:
        """What the round machine does not know yet of a round."""
        table = schema.arrivals
        query = sa.select(table.c.device, table.c.reason).where(table.c.round == round_)
        rows = [(str(row["device"]), str(row["reason"])) for row in self._store.rows(query)]
        accepted = sorted(device for device, reason in rows if not reason)
        return Arrivals(tuple(accepted), tuple(sorted(row for row in rows if row[1])))

    def close(self, round_: int) -> Arrivals:
        """Accept nothing more; returns what the round machine does not know yet, the last of this round."""
        with self._store.transaction(write=True) as connection:
            _read(connection, lock=True, alone=True)
            connection.execute(schema.intake.update().values(taking=0))
            return self.arrivals(round_)

    def known(self, round_: int, arrivals: Arrivals) -> None:
        """The round machine knows these now; in the transaction of its event."""
        table = schema.arrivals
        with self._store.transaction() as connection:
            connection.execute(table.delete().where(table.c.round < round_))
            for device, reason in (*((device, "") for device in arrivals.accepted), *arrivals.refused):
                here = (table.c.round == round_) & (table.c.device == device) & (table.c.reason == reason)
                connection.execute(table.delete().where(here))


def _read(connection: sa.Connection, *, lock: bool, alone: bool = False) -> Intake:
    query = sa.select(schema.intake).where(schema.intake.c.id == _ROW)
    row = connection.execute(query.with_for_update(read=not alone) if lock else query).mappings().first()
    return Intake() if row is None else Intake(row["round"], row["manifest"], bool(row["taking"]))


def _forget_withdrawn(connection: sa.Connection, group: Sequence[ReceivedUpdate]) -> None:
    """The same bytes as a withdrawn update: they count now."""
    table = schema.withdrawn
    here = table.c.device.in_([one.header.device for one in group])
    connection.execute(table.delete().where(here & table.c.digest.in_([one.digest for one in group])))
