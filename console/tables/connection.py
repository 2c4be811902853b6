"""One read-only connection to the coordinator's tables, opened again after any trouble."""

import sqlite3
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final, Self, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from coordinator.config.coordinator import CoordinatorSettings
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
        absent: what a person should know if there are none.
    """

    def __init__(self, location: Location, absent: str = "has this coordinator ever run?") -> None:
        self._location = location
        self._absent = absent
        self._lock = threading.Lock()
        self._store: Database | None = None
        self._opened = 0.0
        self._file: tuple[int, int] | None = None
        self._is_closed = False

    @classmethod
    def of_task(cls, settings: CoordinatorSettings) -> Self:
        """To the tables of the task of these settings."""
        if settings.further_task is None:
            return cls(settings.location)
        return cls(settings.location, "the coordinator makes its tables when it begins this task")

    def read(self, query: Callable[[Database], T]) -> T:
        """What a function reads, as of one moment.

        Raises:
            Misconfigured: the tables are of another release, damaged, or not ours to read.
            Transient: there are none yet, they are held, the server cannot be reached, or :meth:`close` was
                called: nobody looks at them any more.
        """
        with self._lock:
            if self._is_closed:
                raise Transient(f"{self._location.where} is read no more: nobody looked; load the page again")
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
        """Close the connection, for good."""
        with self._lock:
            self._is_closed = True
            self._close()

    def _open(self) -> Database:
        file = _identity(self._location.place)
        if self._store is not None and file == self._file and time.monotonic() - self._opened < _AGAIN_S:
            return self._store
        self._close()
        if not self._location.exists():
            raise Transient(f"{self._location.where} is not there; {self._absent}")
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
