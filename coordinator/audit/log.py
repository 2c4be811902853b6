"""The audit log: every action of an operator is a row before it begins, and another one when it is over.

Its own tables are shared by the commands and the console. The newest row's number and digest are also in the
file ``audit.head`` of the state folder, so that rows cut off the end of the table show.
"""

import os
import pwd
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from coordinator.audit.chain import (
    BEGUN,
    AuditEntry,
    AuditHead,
    AuditRow,
    ChainCheck,
    Person,
    next_row,
    verify,
)
from coordinator.audit.tables import OPERATORS
from coordinator.storage.engines.shared_tables import Statements
from coordinator.storage.location import Location
from protocol.errors import LichenError, Misconfigured, Reason, Refused, Transient
from runtime.storage.files import disk_errors, write_atomic

HEAD: Final = "audit.head"
"""File in the state folder: number and digest of the newest row that was written from there."""
MAX_LISTED: Final = 10_000


class OngoingAction:
    """An action that goes on; ``outcome`` is what its last row will say."""

    def __init__(self) -> None:
        self.outcome = "done"


class AuditLog:
    """Opens (and creates) the log of a coordinator.

    Synchronous and thread-safe; every row is on disk when the method returns.

    Args:
        where: the tables; a folder stands for the SQLite files in it.
        task: the further task that the rows are about; None: the main one, or the fleet.
        wall: Unix seconds.

    Raises:
        Refused: there is no state folder: no coordinator ever ran here.
        Misconfigured: the tables are of a newer lichen or damaged, or access is denied.
        Transient: the disk is full, or the server cannot be reached.
    """

    def __init__(
        self, where: Location | Path, *, task: str | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        location = Location.at(where)
        if location.schema is None and not location.state_dir.is_dir():  # a mistyped folder is not made
            raise Refused(
                Reason.UNKNOWN_TASK, f"{location.where} is not there; has this coordinator ever run?"
            )
        self._tables = location.shared(OPERATORS)
        self._task = task
        self._head = location.state_dir / HEAD
        self._wall = wall

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the tables."""
        self._tables.close()

    def now(self) -> float:
        """Unix seconds, by the clock of the log."""
        return self._wall()

    @contextmanager
    def change(self) -> Iterator[Statements]:
        """A transaction on the tables of operators. Raises as :meth:`SharedTables.change`."""
        with self._tables.change() as tables:
            yield tables

    def rows(self, query: str, *values: Any) -> list[Any]:
        """The rows of a query on the tables of operators. Raises as :meth:`SharedTables.rows`."""
        return self._tables.rows(query, *values)

    def append(self, person: Person, action: str, target: str, outcome: str, *, of: int | None = None) -> int:
        """Add a row; its number.

        Raises:
            Transient: the disk is full, or the server cannot be reached.
        """
        with self._tables.change() as tables:
            row = next_row(
                _newest(tables),
                person,
                action=action,
                target=target,
                outcome=outcome,
                wall=self._wall(),
                of=of,
                task=self._task,
            )
            tables.execute("INSERT INTO audit VALUES (?, ?, ?)", (row.seq, row.doc, row.digest))
        mine = AuditHead(row.seq, row.digest)
        with self._tables.change() as tables:  # one process at a time: none writes an older head over a newer
            newest = _newest(tables) or mine
            write_atomic(self._head, str(max(mine, newest, key=lambda one: one.seq)).encode())
        return row.seq

    @contextmanager
    def acting(self, person: Person, action: str, target: str = "") -> Iterator[OngoingAction]:
        """Write that an action begins, and how it ended. What cannot be written is not done.

        Raises:
            Transient: nothing was done, because the log cannot be written; or it was done, and only its end
                could not be written: the message says which.
        """
        try:
            begun = self.append(person, action, target, BEGUN)
        except Transient as error:
            raise Transient(f"{action}: not done, because the audit log cannot be written: {error}") from None
        doing = OngoingAction()
        try:
            yield doing
        except BaseException as error:
            self._end(person, action, target, outcome=_failure(error), begun=begun, quiet=True)
            raise
        self._end(person, action, target, outcome=doing.outcome, begun=begun, quiet=False)

    def _end(
        self, person: Person, action: str, target: str, outcome: str, begun: int, *, quiet: bool
    ) -> None:
        try:
            self.append(person, action, target, outcome, of=begun)
        except LichenError as error:
            if not quiet:  # else the failure of the action is reported
                words = f"{action}: done ({outcome}), but the audit log does not say so: {error}"
                raise Transient(words) from None


def _newest(tables: Statements) -> AuditHead | None:
    found = tables.execute("SELECT seq, digest FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    return None if found is None else AuditHead(int(found["seq"]), str(found["digest"]))


def _failure(error: BaseException) -> str:
    if isinstance(error, Refused):
        return f"refused: {error.words}"
    if isinstance(error, LichenError):
        return f"failed: {error}"
    return f"failed: {type(error).__name__}"


def read_log(where: Location | Path, *, last: int | None = None, after: int = 0) -> list[AuditEntry]:
    """The newest entries after a row, the oldest of them first; at most ``MAX_LISTED``.

    Raises:
        Misconfigured: the log cannot be read.
        Transient: another process holds it, or the server cannot be reached.
    """
    count = MAX_LISTED if last is None else min(last, MAX_LISTED)
    query = "SELECT seq, doc, digest FROM audit WHERE seq > ? ORDER BY seq DESC LIMIT ?"
    with _reading(where, query, after, count) as rows:
        found = list(rows)
    try:
        return [AuditEntry.model_validate_json(row.doc) for row in reversed(found)]
    except ValueError as error:
        words = f"a row of the audit log cannot be read ({error})"[:300]
        raise Misconfigured(f"{words}; lichen audit verify names the first one") from None


def verify_log(
    where: Location | Path, heads: tuple[AuditHead, ...] = (), *, most: int | None = None
) -> ChainCheck:
    """Check the whole log against itself, against the recorded head of the state folder, and ``heads``.

    Args:
        where: the tables; a folder stands for the SQLite files in it.
        heads: that were recorded elsewhere.
        most: only so many rows from the first one; None: all.

    Raises:
        Misconfigured: the log or the recorded head cannot be read.
        Transient: another process holds it, or the server cannot be reached.
    """
    folder = Location.at(where).state_dir
    recorded = _recorded(folder / HEAD)  # first: the log may grow meanwhile
    known = heads if recorded is None else (*heads, recorded)
    last = 2**31 - 1 if most is None else most
    with _reading(where, "SELECT seq, doc, digest FROM audit WHERE seq <= ? ORDER BY seq", last) as rows:
        return verify(rows, [one for one in known if one.seq <= last])


def _recorded(file: Path) -> AuditHead | None:
    with disk_errors(file):
        try:
            text = file.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None
    return AuditHead.read(text, str(file))


@contextmanager
def _reading(where: Location | Path, query: str, *values: int) -> Iterator[Iterator[AuditRow]]:
    """The rows of a query, as they are read; none if nobody has acted yet."""
    location = Location.at(where)
    try:
        with location.reader(OPERATORS) as tables:
            found = () if tables is None else tables.execute(query, values)
            yield (AuditRow(int(row["seq"]), str(row["doc"]), str(row["digest"])) for row in found)
    except sqlite3.Error as error:
        raise Misconfigured(f"{location.where}: the audit log cannot be read: {error}") from None


def account() -> Person:
    """Who typed a command: the account of the operating system; under sudo, also whose it was before."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name  # not the environment's, which anybody may set
    except KeyError:
        name = f"uid {os.getuid()}"
    before = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return Person(f"{name} (sudo of {before})" if before else name, "admin", "command line")
