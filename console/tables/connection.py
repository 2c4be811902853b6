"""One read-only connection to the coordinator's tables, opened again after any trouble."""

import sqlite3
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from coordinator.storage.database import Database
from coordinator.storage.location import Location
from protocol.errors import LichenError, Transient

T = TypeVar("T")
_AGAIN_S: Final = 60.0
"""A connection is opened again after so long: the tables' version is compared at each opening."""


class TablesConnection:
    """Reads one after the other, from any thread.

    Args:
        location: of the tables.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._store: Database | None = None
        self._opened = 0.0
        self._file: tuple[int, int] | None = None

    def read(self, query: Callable[[Database], T]) -> T:
        """What a function reads, as of one moment.

        Raises:
            Misconfigured: the tables are of another release, damaged, or not ours to read.
            Transient: there are none yet, they are held, or the server cannot be reached.
        """
        with self._lock:
            store = self._open()
            try:
                with store.snapshot():
                    return query(store)
            except (LichenError, SQLAlchemyError, sqlite3.Error) as error:
                self._close()
                if isinstance(error, LichenError):
                    raise
                raise Transient(f"{self._location.where}: cannot be read now: {error}"[:500]) from None

    def mark(self, store: Database) -> Hashable:
        """A mark that changes with each write to any of the tables, and with the connection.

        It is made by a function that :meth:`read` calls; what that reads afterwards is as new or newer.
        """
        return self._opened, self._location.change_mark(store)

    def close(self) -> None:
        """Close the connection; the next read opens another."""
        with self._lock:
            self._close()

    def _open(self) -> Database:
        file = _identity(self._location.place)
        if self._store is not None and file == self._file and time.monotonic() - self._opened < _AGAIN_S:
            return self._store
        self._close()
        if not self._location.exists():
            raise Transient(f"{self._location.where} is not there; has this coordinator ever run?")
        self._store = self._location.database(read_only=True)
        self._opened, self._file = time.monotonic(), file
        return self._store

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _identity(place: object) -> tuple[int, int] | None:
    """A file that was put in the place of another one is another one; a server's tables have no such name."""
    if not isinstance(place, Path):
        return None
    try:
        found = place.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
