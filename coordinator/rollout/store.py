"""The store of rollouts: ``rollout.sqlite3``, written by the daemon and ``lichen rollout`` at the same time.

A writer applies an event to the state machine inside one transaction, so both decide from the same state.
Synchronous and thread-safe; every change is on disk when the method returns.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from coordinator.rollout.device_record import RolloutDevice
from coordinator.rollout.model import Command, Event, Rollout, RolloutState
from coordinator.rollout.table import apply
from coordinator.storage.engines.shared_tables import Design, SharedFence, Statements
from coordinator.storage.location import Location
from protocol.errors import Misconfigured, Reason, Refused
from runtime.text import one_line

FILE: Final = "rollout.sqlite3"
VERSION: Final = 1
READABLE_FROM: Final = 1
UPGRADES: Final[Mapping[int, Sequence[str]]] = {}
_ROLLOUTS_WITH_DEVICES: Final = 20
"""Rollouts whose devices are stored."""
_LOST: Final = (
    "move it away, and keep it to see what was rolled out: rollouts start again; devices keep what they run "
    "until the next one"
)
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS course (id INTEGER PRIMARY KEY CHECK (id = 1), doc TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS past (number INTEGER PRIMARY KEY, doc TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS members (
        number INTEGER NOT NULL, device TEXT NOT NULL, doc TEXT NOT NULL, PRIMARY KEY (number, device))
        WITHOUT ROWID""",
)

_PUT_COURSE: Final = "INSERT INTO course VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET doc = excluded.doc"
_PUT_PAST: Final = "INSERT INTO past VALUES (?, ?) ON CONFLICT (number) DO UPDATE SET doc = excluded.doc"
_PUT_MEMBER: Final = (
    "INSERT INTO members VALUES (?, ?, ?) ON CONFLICT (number, device) DO UPDATE SET doc = excluded.doc"
)

ROLLOUTS: Final = Design(FILE, "rollout", _SCHEMA, VERSION, READABLE_FROM, UPGRADES, _LOST)


class RolloutStore:
    """Opens (and creates) the store of a coordinator; a folder stands for the SQLite files in it.

    ``fence``: called before each commit that wrote something; what it raises undoes the transaction.

    Raises:
        Misconfigured: the file is not a store of rollouts, or access is denied.
        Transient: the disk is full.
    """

    def __init__(self, where: Location | Path, fence: SharedFence | None = None) -> None:
        self._tables = Location.at(where).shared(ROLLOUTS, fence)
        self.where = self._tables.where
        self._lock = threading.RLock()
        self._mark: tuple[int, int] | None = None
        self._course = RolloutState()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._tables.close()

    def course(self) -> RolloutState:
        """All decisions so far; read again only if another process wrote.

        Raises:
            Misconfigured: a row is damaged.
        """
        with self._lock:
            mark = self._tables.mark()
            if mark != self._mark:
                with self._tables.change() as tables:
                    self._course = self._read(tables)
                self._mark = mark
            return self._course

    @property
    def last(self) -> RolloutState:
        """As it was read or written here last; blocks for nothing."""
        return self._course

    def play(
        self, event: Event, now: float, *, number: int | None = None, phase: str | None = None
    ) -> tuple[RolloutState, RolloutState, tuple[Command, ...]]:
        """Apply an event to the state machine, and write the result.

        Args:
            event: what happened.
            now: Unix seconds.
            number: the rollout that the event is meant for; None: whichever is the last.
            phase: the phase that it is meant for; None: any.

        Returns:
            The state before and after it, and the commands.

        Raises:
            Refused: as :func:`coordinator.rollout.table.apply`; or another rollout began meanwhile.
            Transient: the disk is full; nothing was decided.
        """
        with self._lock:
            known = self.course()
            _require(known, number, phase)
            after, commands = apply(known, event, now)
            if after is known:
                return known, known, commands
            with self._tables.change() as tables:
                # Another process may have written in between; the transaction reads the newest state.
                before = known if self._tables.mark() == self._mark else self._read(tables)
                _require(before, number, phase)
                after, commands = apply(before, event, now)
                if after is not before:
                    _write(tables, before, after)
                mark = self._tables.mark()  # before the commit: later writes of another process are news
            self._course, self._mark = after, mark
            return before, after, commands

    def _read(self, tables: Statements) -> RolloutState:
        try:
            return read_course(tables)
        except ValidationError as error:
            raise Misconfigured(f"{self.where}: a row cannot be read: {error}"[:300] + f"; {_LOST}") from None


def _require(course: RolloutState, number: int | None, phase: str | None) -> None:
    if number is not None and course.number != number:
        words = f"rollout {number} is not the last one any more: that is rollout {course.number}"
        raise Refused(Reason.WRONG_ROUND, f"{words}; look at it first")
    if phase is not None and course.phase.value != phase:
        words = f"rollout {course.number} is {course.phase.value} now, and no more {one_line(phase, 20)}"
        raise Refused(Reason.WRONG_ROUND, f"{words}: somebody acted before; look at it first")


def read_course(tables: Statements, *, devices: bool = True) -> RolloutState:
    """All decisions, with or without the last rollout's devices.

    Raises:
        ValidationError: a row is damaged.
    """
    row = tables.execute("SELECT doc FROM course WHERE id = 1").fetchone()
    if row is None:
        return RolloutState()
    course = RolloutState.model_validate_json(row["doc"])
    if course.rollout is None or not devices:
        return course
    return course.model_copy(update={"rollout": _with_members(tables, course.rollout)})


def read_past(tables: Statements, *, devices: bool = True) -> list[Rollout]:
    """Rollouts before the last one, the newest first, with or without their devices.

    Raises:
        ValidationError: a row is damaged.
    """
    rows = tables.execute("SELECT doc FROM past ORDER BY number DESC").fetchall()
    found = [Rollout.model_validate_json(row["doc"]) for row in rows]
    return [_with_members(tables, one) for one in found] if devices else found


def read_one(tables: Statements, number: int) -> tuple[RolloutState, Rollout | None]:
    """All decisions, and one rollout with its devices; None: it is not stored (any more).

    Raises:
        ValidationError: a row is damaged.
    """
    course = read_course(tables, devices=False)
    found = course.rollout
    if found is None or found.number != number:
        row = tables.execute("SELECT doc FROM past WHERE number = ?", (number,)).fetchone()
        found = None if row is None else Rollout.model_validate_json(row["doc"])
    return course, None if found is None else _with_members(tables, found)


def read_first(tables: Statements) -> int | None:
    """Number of the oldest rollout before the last one; None: there is none."""
    found = tables.execute("SELECT min(number) AS first FROM past").fetchone()["first"]
    return None if found is None else int(found)


def _with_members(tables: Statements, rollout: Rollout) -> Rollout:
    query = "SELECT device, doc FROM members WHERE number = ? ORDER BY device"
    rows = tables.execute(query, (rollout.number,)).fetchall()
    members = {row["device"]: RolloutDevice.model_validate_json(row["doc"]) for row in rows}
    return rollout.model_copy(update={"members": members})


def _write(tables: Statements, before: RolloutState, after: RolloutState) -> None:
    """Write what has changed; of the devices only those that have."""
    old, new = before.rollout, after.rollout
    had: dict[str, RolloutDevice] = {}
    if old is not None and new is not None:
        if old.number == new.number:
            had = old.members
        else:
            tables.execute(_PUT_PAST, (old.number, old.model_dump_json()))
            tables.execute("DELETE FROM past WHERE number <= ?", (new.number - _ROLLOUTS_WITH_DEVICES,))
            tables.execute("DELETE FROM members WHERE number <= ?", (new.number - _ROLLOUTS_WITH_DEVICES,))
    if new is not None:
        rows = [
            (new.number, name, one.model_dump_json())
            for name, one in new.members.items()
            if one is not had.get(name)
        ]
        tables.executemany(_PUT_MEMBER, rows)
    tables.execute(_PUT_COURSE, (after.model_dump_json(),))
