"""A small SQLite file that several processes write; by default ``identity.sqlite3``.

Its times are Unix seconds, its serial numbers hexadecimal.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from coordinator.storage.engines.shared_tables import Design, SharedFence
from coordinator.storage.migrations import TableVersion, keep_copy, require_readable
from protocol.errors import Misconfigured
from runtime.storage.files import disk_errors
from runtime.storage.sqlite import WAIT_S, Place, sorted_error
from runtime.storage.sqlite_writer import closed_on_error, open_writer, require_sound, transaction

VERSION: Final = 1
READABLE_FROM: Final = 1
UPGRADES: Final[Mapping[int, Sequence[str]]] = {}
_WAIT_S: Final = WAIT_S
_CLOSE_S: Final = 1.0
_LOST: Final = (
    "restore it from its copy (.backup, beside it) or a whole backup (docs/coordinator-state.md), and "
    "revoke again who was revoked since"
)
_SCHEMA: Final = (
    # id: the first half of the token's SHA-256, the key; hash: all of it, compared in constant time.
    # key: of the one device key that used it. claimed: the name that this key asked for.
    """CREATE TABLE IF NOT EXISTS invites (
        id TEXT PRIMARY KEY, hash TEXT NOT NULL, device TEXT, made_wall REAL NOT NULL,
        expires_wall REAL NOT NULL, used_wall REAL, key TEXT, claimed TEXT) WITHOUT ROWID""",
    # key: SHA-256 of its public key. certificate: the answer. before: the serial it renewed last.
    """CREATE TABLE IF NOT EXISTS devices (
        name TEXT PRIMARY KEY, status TEXT NOT NULL, key TEXT NOT NULL, certificate TEXT, serial TEXT,
        before TEXT, not_after REAL, enrolled_wall REAL, changed_wall REAL NOT NULL) WITHOUT ROWID""",
    # When the operator last approved a name; also of devices that need no certificate.
    "CREATE TABLE IF NOT EXISTS released (name TEXT PRIMARY KEY, wall REAL NOT NULL) WITHOUT ROWID",
    # Every certificate that has not expired long ago, so that all of a device's can be revoked.
    """CREATE TABLE IF NOT EXISTS certificates (
        serial TEXT PRIMARY KEY, device TEXT NOT NULL, issued_wall REAL NOT NULL, not_after REAL NOT NULL,
        revoked_wall REAL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS by_device ON certificates (device)",
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)


IDENTITIES: Final = Design("identity.sqlite3", "identity", _SCHEMA, VERSION, READABLE_FROM, UPGRADES, _LOST)


class SharedSqlite:
    """One connection, shared by threads behind a lock; other processes have their own.

    Args:
        path: the file; created (0600) if it is missing.
        design: its tables; None: those of identities.
        fence: called before each commit that wrote something; what it raises undoes the transaction.

    Raises:
        Misconfigured: it is not a database, is of a newer lichen, denies access, or its disk is read-only.
        Transient: the disk is full, or another process holds the file for too long.
    """

    def __init__(self, path: Path, design: Design | None = None, fence: SharedFence | None = None) -> None:
        self.path = path
        self.where = str(path)
        self._design = design or IDENTITIES
        self._fence = fence
        self._lock = threading.RLock()
        self._place: Place | None = None
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._sorted():
            self._connection = open_writer(path, wait_s=_WAIT_S)
        self._connection.row_factory = sqlite3.Row
        with closed_on_error(self._connection):
            with self._sorted():
                self._prepare()
            self._place = Place(path)

    def _prepare(self) -> None:
        require_sound(self._connection)
        found = TableVersion.of(self._connection.execute)
        require_readable(self.path, found, self._design.version)
        if found.version < self._design.version:
            with self.change() as made:
                self._bring_up_to_date(made)

    def _bring_up_to_date(self, made: sqlite3.Connection) -> None:
        """Run all migration steps or none; another process may just have run them."""
        design, found = self._design, TableVersion.of(made.execute).version
        if found >= design.version:
            return
        if found:
            keep_copy(self.path, found)
        for known in range(found or design.version, design.version):
            for statement in design.upgrades[known]:
                made.execute(statement)
        for statement in design.schema:
            made.execute(statement)
        TableVersion(design.version, design.readable_from).write(made.execute)

    def close(self) -> None:
        """Close the file; a thread that waits for another process to release it fails then."""
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                self._connection.close()
            finally:
                self._lock.release()

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction, on disk at its end, exclusive among all processes.

        Raises:
            Transient: the disk is full, another process did not release the file in time, or the file is
                gone.
        """
        with self._lock, self._sorted():
            with transaction(self._connection, self.path):
                before = self._connection.total_changes
                yield self._connection
                if self._fence is not None and self._connection.total_changes != before:
                    self._fence(self._connection)
            if self._place is not None:
                self._place.require()

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """The rows of a query."""
        with self._lock, self._sorted():
            return self._connection.execute(query, values).fetchall()

    def mark(self) -> tuple[int, int]:
        """A mark that changes when this or another process changes the file. Does not read the tables."""
        with self._lock, self._sorted():
            theirs = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
            return theirs, self._connection.total_changes

    @contextmanager
    def _sorted(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise sorted_error(error, self.path, waited_s=_WAIT_S) from None
        except sqlite3.DatabaseError as error:
            raise Misconfigured(f"{self.path}: {error}; {self._design.lost}") from None
