"""What :class:`coordinator.storage.database.Database` needs of an engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from protocol.errors import Transient

Fence = Callable[[sa.Connection], None]
"""Called in a transaction that wrote something, just before its commit; what it raises undoes that."""
Insert = sqlite.Insert | postgresql.Insert


class TableEngine(ABC):
    """One connection to one set of tables. The caller holds a lock around everything but ``require_there``.

    Attributes:
        where: the place of the tables for messages, without secrets.
        insert: an INSERT that knows ``on_conflict_do_update`` and ``on_conflict_do_nothing``.
    """

    where: str
    insert: Callable[[sa.Table], Insert]
    _connection: sa.Connection | None = None
    _why = ""
    """Why there is no connection, if the server said so."""

    @abstractmethod
    def open(self) -> None:
        """Connect, check the tables, and bring them up to date.

        Raises:
            Misconfigured: the operator must act.
            Transient: the engine cannot be used now.
        """

    @property
    def in_transaction(self) -> bool:
        """Whether :meth:`transaction` is open."""
        return self._connection is not None and self._connection.in_transaction()

    @property
    def connection(self) -> sa.Connection:
        """The connection of the open transaction.

        Raises:
            Transient: it is closed or lost.
        """
        if self._connection is None:
            raise Transient(self._why or f"{self.where}: the database is closed, or its connection was lost")
        return self._connection

    @abstractmethod
    def transaction(self, *, write: bool, fence: Fence | None) -> AbstractContextManager[sa.Connection]:
        """A transaction, durable at its end.

        Args:
            write: whether to take a write lock at the begin, where the engine has one for all tables.
            fence: see :data:`Fence`.

        Raises:
            Transient: nothing was changed.
        """

    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes of the rows, about; inside a transaction."""

    @abstractmethod
    def see_one_moment(self) -> None:
        """Let the open transaction, which has read nothing yet, see everything as of one moment."""

    @abstractmethod
    def change_mark(self) -> Hashable:
        """A mark of this connection that changes with each write of others to the tables.

        Inside a transaction, whose later reads are as new as the mark, or newer.
        """

    @abstractmethod
    def count_on(self, connection: sa.Connection) -> None:
        """Let numbers that the engine draws go on after those of rows that were copied."""

    @abstractmethod
    def require_there(self) -> None:
        """Check that what was written can be found again; does not wait for other threads.

        Raises:
            Transient: it cannot; the daemon must start again.
        """

    @abstractmethod
    def is_served(self) -> bool | None:
        """Whether a coordinator runs on the tables; None if that cannot be seen."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Idempotent."""
