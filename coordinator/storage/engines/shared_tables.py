"""Small tables that several processes write: identities and rollouts, on SQLite or PostgreSQL.

Their statements are SQL that both engines know, with ``?`` for values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


class Cursor(Protocol):
    """The result of a statement; a row is read by name or by position."""

    @property
    def rowcount(self) -> int:
        """Rows that the statement changed."""

    def fetchone(self) -> Any:
        """The next row; None if there is none."""

    def fetchall(self) -> list[Any]:
        """All rows."""

    def __iter__(self) -> Iterator[Any]: ...


class Statements(Protocol):
    """An open transaction."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run a statement."""

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Run a statement for each row."""


SharedFence = Callable[[Statements], None]
"""Called in a transaction that wrote something, just before its commit; what it raises undoes that."""


class SharedTables(Protocol):
    """One connection, shared by threads behind a lock; other processes have their own."""

    @property
    def where(self) -> str:
        """The place for messages."""

    def change(self) -> AbstractContextManager[Statements]:
        """A transaction, durable at its end, exclusive among all processes.

        Raises:
            Transient: nothing was changed: the disk is full, another process did not release the tables in
                time, they are gone, or the server cannot be reached.
        """

    def rows(self, query: str, *values: Any) -> list[Any]:
        """The rows of a query."""

    def mark(self) -> tuple[int, int]:
        """A mark that changes when this or another process changes the tables. Does not read them."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Design:
    """The tables.

    Attributes:
        file: its name in a state folder.
        suffix: of the schema of a PostgreSQL database.
        schema: statements that create what is missing.
        version: of the tables.
        readable_from: releases with this version of the tables, or a later one, can use them.
        upgrades: statements from a version to the next, before those of ``schema``.
        lost: what to do if they are damaged.
    """

    file: str
    suffix: str
    schema: Sequence[str]
    version: int
    readable_from: int
    upgrades: Mapping[int, Sequence[str]]
    lost: str
