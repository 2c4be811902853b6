"""Orders of operators that the daemon carries out: rounds held or ended, commands for a device.

The commands and the console write them into the tables of operators; the daemon reads them at its start and
every few seconds. A hold and an end stand until an operator takes them back, also over a restart.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal, cast

import structlog

from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog
from coordinator.audit.tables import OPERATORS
from coordinator.storage.engines.shared_tables import SharedTables, Statements
from coordinator.storage.location import Location
from protocol.errors import LichenError, Misconfigured, Reason, Refused
from protocol.messages import Command
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.text import one_line
from runtime.waits import Wait

log = structlog.get_logger(__name__)

REFRESH_S: Final = 3.0
SEND_STATE: Final = "send_state"
SEND_LOGS: Final = "send_logs"
_MAX_REQUESTS: Final = 1000
"""Requests that wait at once."""
_MAX_WHY: Final = 200
Standing = Literal["", "held", "ended"]


@dataclass(frozen=True, slots=True)
class RoundOrder:
    """What operators ordered about the rounds. ``state``: empty if they go on. ``wall``: Unix seconds."""

    state: Standing = ""
    who: str = ""
    why: str = ""
    wall: float = 0.0

    @property
    def words(self) -> str:
        """For people; empty if the rounds go on."""
        if not self.state:
            return ""
        because = f": {self.why}" if self.why else ""
        return f"{self.who} {'holds' if self.state == 'held' else 'ended'} the rounds{because}"

    def wait(self) -> Wait | None:
        """The wait of a hold, for the status."""
        if self.state != "held":
            return None
        return Wait(
            "hold", f"no round is opened: {self.words}", self.wall, None, "lichen round resume ends it"
        )


def order_rounds(
    audit: AuditLog, person: Person, state: Standing, why: str, seen: Standing | None = None
) -> RoundOrder:
    """Write an order about the rounds; what was ordered before. ``seen``: what that must be; None: anything.

    Raises:
        Refused: they are as ordered already, not as seen, or they are ended and cannot be held.
        Transient: the disk is full, or the server cannot be reached; nothing was changed.
    """
    with audit.change() as tables:
        before = _order(tables)
        if before.state == state:
            raise Refused(Reason.DUPLICATE, before.words or "the rounds are neither held nor ended")
        if seen is not None and before.state != seen:
            now = before.words or "the rounds go on, and are neither held nor ended"
            raise Refused(Reason.WRONG_ROUND, f"somebody acted before: {now}; look at it first")
        if before.state == "ended" and state == "held":
            raise Refused(Reason.WRONG_ROUND, f"there is nothing to hold: {before.words}")
        tables.execute(
            "INSERT INTO rounds VALUES (1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state,"
            " who = excluded.who, why = excluded.why, wall = excluded.wall",
            (state, one_line(person.name, 100), one_line(why, _MAX_WHY), audit.now()),
        )
    return before


def request(audit: AuditLog, device: str, command: str) -> None:
    """Have the daemon send a command to a device; the same one that still waits is not sent twice.

    Raises:
        Refused: too many requests wait.
        Transient: the disk is full, or the server cannot be reached.
    """
    with audit.change() as tables:
        count = tables.execute("SELECT count(*) FROM requests").fetchone()[0]
        if count >= _MAX_REQUESTS:
            raise Refused(Reason.FULL, f"{count} requests wait for the coordinator already; try again later")
        words = "INSERT INTO requests VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        tables.execute(words, (device, command, audit.now()))


def read_order(location: Location) -> RoundOrder:
    """What operators ordered about the rounds, for the status.

    Raises:
        Misconfigured: the tables cannot be read.
        Transient: another process holds them, or the server cannot be reached.
    """
    try:
        with location.reader(OPERATORS) as tables:
            return RoundOrder() if tables is None else _order(tables)
    except sqlite3.Error as error:
        raise Misconfigured(f"{location.where}: the tables of operators cannot be read: {error}") from None


def _order(tables: Statements) -> RoundOrder:
    row = tables.execute("SELECT state, who, why, wall FROM rounds WHERE id = 1").fetchone()
    if row is None:
        return RoundOrder()
    state = row["state"] if row["state"] in {"held", "ended"} else ""
    return RoundOrder(cast("Standing", state), str(row["who"]), str(row["why"]), float(row["wall"]))


class OperatorOrders:
    """The daemon's side.

    Args:
        location: of the tables.
        clock: the time.
    """

    def __init__(self, location: Location, clock: Clock) -> None:
        self._location = location
        self._clock = clock
        self._tables: SharedTables | None = None
        self._mark: tuple[int, int] | None = None
        self._said = ""
        self.rounds = RoundOrder()

    def hold(self) -> str:
        """Why no round may be opened; empty if one may. Reads no disk."""
        return self.rounds.words

    def open(self) -> None:
        """Read what was ordered about the rounds. Raises as :func:`read_order`."""
        self.rounds = read_order(self._location)

    def _read(self) -> list[tuple[str, str]]:
        """Read the orders if they changed, and take the requests: device and command."""
        if self._tables is None:
            if self._location.schema is None and not self._location.has(OPERATORS):
                return []  # on PostgreSQL they are made, for less than a look costs
            self._tables = self._location.shared(OPERATORS)
        if self._tables.mark() == self._mark:
            return []
        with self._tables.change() as tables:
            self.rounds = _order(tables)
            found = [(str(r["device"]), str(r["command"])) for r in tables.execute("SELECT * FROM requests")]
            if found:
                tables.execute("DELETE FROM requests")
            mark = self._tables.mark()  # before the commit: later writes of others are news
        self._mark = mark  # after it: what a full disk undid is read again
        return found

    async def run(
        self, end: Callable[[str], Awaitable[object]], send: Callable[[str, Kind, Command], object]
    ) -> None:
        """Read new orders, for ever.

        Args:
            end: ends the rounds, and says why; harmless if they have ended.
            send: sends a message to a device.
        """
        while True:
            try:
                requests = await asyncio.to_thread(self._read)
                for device, command in requests:
                    send(device, Kind.CMD, Command(command=command))
                if self.rounds.state == "ended":
                    await end(self.rounds.words)
                self._said = ""
            except LichenError as error:  # earlier orders stay in force
                if str(error) != self._said:
                    log.warning("operator_orders_not_read", why=str(error))
                self._said = str(error)
            await self._clock.sleep(REFRESH_S)

    def close(self) -> None:
        """Close the tables. Idempotent."""
        if self._tables is not None:
            with closing(self._tables):
                self._tables = None
