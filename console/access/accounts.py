"""People, links and sessions for the console: one connection to the tables, opened when needed."""

import hashlib
import hmac
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from coordinator.accounts import links, people, sessions
from coordinator.accounts.links import SignInLink
from coordinator.accounts.people import PersonRow
from coordinator.accounts.secrets import MAX_TOKEN, TokenDigest
from coordinator.accounts.sessions import ConsoleSession
from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog
from coordinator.audit.tables import OPERATORS
from coordinator.storage.location import Location
from protocol.errors import LichenError, Misconfigured, Reason, Refused, Transient

T = TypeVar("T")
_NOTED_S: Final = 60.0
"""A session's last use is written at most so often."""


class Accounts:
    """Synchronous and thread-safe.

    Args:
        location: of the tables.
        wall: Unix seconds.
    """

    def __init__(self, location: Location, wall: Callable[[], float] = time.time) -> None:
        self._location = location
        self.wall = wall
        self._lock = threading.Lock()
        self._log: AuditLog | None = None
        self._file: tuple[int, int] | None = None
        self._people = False

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            self._close()

    def session(self, token: str, *, acts: bool) -> ConsoleSession | None:
        """The session of a cookie; None if it is over or none of ours.

        Args:
            token: the cookie's value.
            acts: whether the person did something, so that the time of doing nothing begins anew.

        Raises:
            Misconfigured, Transient: the tables cannot be read.
        """
        if not 0 < len(token) <= MAX_TOKEN:
            return None
        if self._log is None and not self._location.has(OPERATORS):
            return None  # a stranger's cookie makes no tables
        digest, now = TokenDigest.of(token), self.wall()

        def look(log: AuditLog) -> ConsoleSession | None:
            rows = log.rows("SELECT * FROM sessions WHERE id = ?", digest.id)
            row = rows[0] if rows and digest.matches(rows[0]) else None
            return sessions.look(row, now)

        found = self._use(look)
        if found is not None and acts and now - found.used_wall > _NOTED_S:
            self._note(token, now)
        return found

    def _note(self, token: str, now: float) -> None:
        def note(log: AuditLog) -> None:
            with log.change() as tables:
                sessions.use(tables, token, now)

        try:
            self._use(note)
        except Transient:
            return  # a full disk keeps nobody from looking

    def link(self, token: str) -> SignInLink:
        """The unused link of a token. Raises Refused (BAD_INVITE), Misconfigured, Transient."""

        def look(log: AuditLog) -> SignInLink:
            with log.change() as tables:
                return links.look(tables, token, self.wall())

        return self._use(look)

    def sign_in_by_link(self, token: str, before: str, peer: str) -> str:
        """Use a link up; the new cookie's value.

        Args:
            token: of the link.
            before: the cookie that the browser sent: that session ends.
            peer: the browser's address, for the audit log.

        Raises:
            Refused: BAD_INVITE.
            Misconfigured, Transient: nothing was changed.
        """
        found = self.link(token)

        def begin(log: AuditLog) -> str:
            how = "one-time link"
            with (
                log.acting(Person(found.name, found.role, how), "session.begin", peer),
                log.change() as tables,
            ):
                now = self.wall()
                used = links.use(tables, token, now)
                sessions.end(tables, before)
                return sessions.begin(tables, (used.name, used.role, how), now, now + sessions.SESSION_S)

        return self._use(begin)

    def certified(self, name: str, serial: str) -> PersonRow:
        """The person whose certificate counts.

        Raises:
            Refused: UNKNOWN_DEVICE, REVOKED, or UNTRUSTED: another certificate counts now.
            Misconfigured, Transient: the tables cannot be read.
        """

        def look(log: AuditLog) -> PersonRow:
            rows = log.rows("SELECT * FROM people WHERE name = ?", name)
            if not rows:
                raise Refused(Reason.UNKNOWN_DEVICE, f"no person {name} is known here")
            row = people.row_of(rows[0])
            if row.revoked_wall is not None:
                raise Refused(Reason.REVOKED, f"{name} was revoked")
            if not hmac.compare_digest(row.serial, serial):
                raise Refused(
                    Reason.UNTRUSTED, f"{name} has a newer certificate; this one does not count any more"
                )
            return row

        return self._use(look)

    def sign_in_by_certificate(self, person: PersonRow, before: str, peer: str) -> str:
        """A session for a person who showed their certificate; the cookie's value.

        For ``before`` and ``peer`` see :meth:`sign_in_by_link`.

        Raises:
            Refused: the person was revoked meanwhile.
            Misconfigured, Transient: nothing was changed.
        """

        def begin(log: AuditLog) -> str:
            how = f"certificate {person.serial[:16]}"
            with (
                log.acting(Person(person.name, person.role, how), "session.begin", peer),
                log.change() as tables,
            ):
                now, role = self.wall(), people.require(tables, person.name).role
                sessions.end(tables, before)
                return sessions.begin(tables, (person.name, role, how), now, person.not_after)

        return self._use(begin)

    def sign_out(self, token: str, session: ConsoleSession) -> None:
        """End a session. Raises Misconfigured, Transient."""

        def end(log: AuditLog) -> None:
            with log.change() as tables:
                sessions.end(tables, token)
            log.append(Person(session.name, session.role, session.how), "session.end", session.name, "done")

        self._use(end)

    def has_people(self) -> bool:
        """Whether anybody was ever admitted by a certificate, also if revoked since.

        Read without making tables. Once true it stays so: nothing removes a person.

        Raises:
            Misconfigured, Transient: the tables cannot be read.
        """
        with self._lock:
            if not self._people:
                try:
                    with self._location.reader(OPERATORS) as tables:
                        query = "SELECT 1 FROM people LIMIT 1"
                        self._people = tables is not None and tables.execute(query).fetchone() is not None
                except (sqlite3.Error, SQLAlchemyError) as error:
                    raise Misconfigured(
                        f"{self._location.where}: the people cannot be read: {error}"[:500]
                    ) from None
            return self._people

    def _use(self, act: Callable[[AuditLog], T]) -> T:
        with self._lock:
            file = self._identity()
            if self._log is None or file != self._file:  # a backup was put in its place
                self._close()
                self._log = AuditLog(self._location, wall=self.wall)
                self._file = self._identity()
            try:
                return act(self._log)
            except (LichenError, SQLAlchemyError, sqlite3.Error) as error:
                if isinstance(error, Refused):
                    raise
                self._close()
                if isinstance(error, LichenError):
                    raise
                raise Transient(f"{self._location.where}: cannot be read now: {error}"[:500]) from None

    def _identity(self) -> tuple[int, int] | None:
        if self._location.schema is not None:
            return None
        try:
            found = (self._location.state_dir / OPERATORS.file).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def form_token(cookie: str) -> str:
    """What the forms of a session carry: nobody without the cookie can compute it."""
    return hmac.new(cookie.encode(), b"lichen console form", hashlib.sha256).hexdigest()
