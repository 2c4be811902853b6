"""The windows on disk: a SQLite file with a byte budget, written in batches to spare the SD card.

A window is kept in memory until the next commit: SIGKILL or a power cut loses at most that batch. If the
budget is full, the oldest windows of the most frequent class are removed, so that rare classes stay; drops
are counted by class. If the disk is full, at the start or later, this is logged and lost windows are counted:
windows wait in memory, and the agent continues.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from edge_agent.windows.rows import (
    RowKind,
    WindowRow,
    anything,
    as_set,
    has_label,
    labelled_for,
    rows_of,
    whole_bytes,
)
from edge_agent.windows.statistics import StoreSnapshot, StoreStatistics, snapshot_of
from edge_agent.windows.store_file import (
    grid_digest,
    open_file,
    replace_damaged,
    rows_per_transaction,
    sorted_for,
)
from edge_agent.windows.stored_rows import COUNTED, insert, newest_rows
from models.contract import WindowSet
from models.data.holdout import rule_of
from models.data.labels.targets import keys_of
from protocol.errors import Transient
from protocol.tasks.task import Task
from runtime.storage.files import after_commit, before_commit

_log = structlog.get_logger(__name__)
T = TypeVar("T")
MAX_PENDING: Final = 2048
"""Windows that wait for a commit. At the limit (on a full disk), the oldest is dropped and counted."""
MAX_PENDING_BYTES: Final = 128 * 1024 * 1024
"""The same limit in bytes, for large windows, each counted as complete."""
MAX_READ_BYTES: Final = 512 * 1024 * 1024
"""Windows of one round in memory: the worker reads a file of at most four times as much."""
COMMIT_WINDOWS: Final = 256  # a batch of this size is committed at once
_DAMAGE: Final = (sqlite3.DatabaseError, ValueError, IndexError)
"""Raised when damaged rows are read."""


class WindowStore:
    """Windows of one grid. Thread-safe; :meth:`add`, :meth:`snapshot` and ``pending`` do not touch the disk.

    Args:
        folder: of the file.
        task: of the windows.
        budget_bytes: of their values.
        holdout_of: the device by whose name windows are held back from learning; None: none are.

    Raises:
        Misconfigured: this user cannot write its file.
    """

    disabled_reason = ""

    def __init__(self, folder: Path, task: Task, budget_bytes: int, *, holdout_of: str | None = None) -> None:
        self.path = folder / f"windows-{grid_digest(task)}.sqlite3"
        self._task = task
        self._budget = budget_bytes
        self._disk = threading.RLock()  # taken before _lock: one user of the file at a time
        self._lock = threading.Lock()  # guards the state in memory; held only while it is copied
        self._pending: list[WindowRow] = []
        self._writing: list[WindowRow] = []
        self._dropped: dict[int, int] = {}
        self._lost = 0
        self.trouble: tuple[float, str] | None = None
        """Since when (Unix seconds) and why windows cannot be written; None if they can."""
        self.undo_after = 0
        """Labels by persons up to this number (``given.seq``) were read by a round: they are not undone."""
        self._closed = False
        self._keys = keys_of(task)
        self._device = holdout_of
        self.rule = rule_of(task, holdout_of)
        """Which windows are held back from learning."""
        self._tally = self._no_statistics()
        self._db: sqlite3.Connection | None = None
        self._connect()

    def use(self, task: Task) -> None:
        """Switch to another task on the same grid: stored windows count for its targets."""
        with self._disk:
            self._task, counted = task, (keys_of(task), rule_of(task, self._device))
            if counted != (self._keys, self.rule) and not self._closed:
                self._keys, self.rule = counted
                self._disconnect()
                self._connect()  # counts again

    def _no_statistics(self) -> StoreStatistics:
        return StoreStatistics(len(self._task.modalities), len(self._task.labels), self._keys, self.rule)

    @property
    def pending(self) -> int:
        """Windows that wait for a commit."""
        return len(self._pending)

    @property
    def is_due(self) -> bool:
        """Whether enough windows wait for an immediate commit."""
        return len(self._pending) >= min(COMMIT_WINDOWS, max(1, self._max_pending // 2))

    @property
    def _max_pending(self) -> int:
        return max(1, min(MAX_PENDING, MAX_PENDING_BYTES // whole_bytes(self._task)))

    def add(self, windows: WindowSet, start_B: NDArray[np.float64] | None = None) -> None:
        """Add windows; they reach the disk at the next :meth:`commit`. Does not touch the disk."""
        rows = rows_of(self._task, windows, start_B)
        with self._lock:
            self._pending += rows
            self._shed_excess()

    def _shed_excess(self) -> None:
        excess = max(0, len(self._pending) - self._max_pending)
        del self._pending[:excess]
        self._lost += excess

    def commit(self) -> bool:
        """Write all waiting windows and evict those above the budget. False if the disk refuses."""
        with self._disk:
            while self._pending and not self._closed:
                if not self._commit_some():
                    return False
            return True

    def _commit_some(self) -> bool:
        """Write as many windows in one transaction as the WAL has room for."""
        with self._disk:
            db = self._connect()
            if db is None:
                return False
            with self._lock:
                count = rows_per_transaction((row.values_bytes for row in self._pending), self._budget)
                self._writing, self._pending = self._pending[:count], self._pending[count:]
                tally, dropped = self._tally.copy(), dict(self._dropped)
            written = False
            try:
                with db:
                    insert(db, self._writing, tally, dropped, self._budget)
                    before_commit(self.path)
                after_commit(self.path, synced=False)
                written = True
            except sqlite3.OperationalError as error:  # the disk is full, or read-only
                self._report_full(str(sorted_for(self.path, error)))
            except _DAMAGE as error:  # the file was damaged while the agent ran
                self._replace_damaged(error)
            finally:
                with self._lock:
                    if written:
                        self._tally, self._dropped = tally, dropped
                    else:
                        self._pending = self._writing + self._pending
                        self._shed_excess()
                    self._writing = []
            if written:
                self._report_recovered()
            return written

    def _report_full(self, why: str) -> None:
        if self.trouble is None:
            _log.error("windows_not_written", file=str(self.path), error=why)
            self.trouble = time.time(), why

    def _report_recovered(self) -> None:
        if self.trouble is not None:
            since, self.trouble = self.trouble[0], None
            _log.info(
                "windows_written_again",
                file=str(self.path),
                after_s=round(time.time() - since),
                lost=self._lost,
            )

    def _connect(self) -> sqlite3.Connection | None:
        """The open file; opening is tried again at each call while the disk has no room."""
        if self._db is None:
            try:
                self._db = open_file(self.path, self._budget)
                self._recount(self._db)
            except (Transient, OSError, sqlite3.OperationalError) as error:
                self._disconnect()
                self._report_full(str(error))
            except _DAMAGE as error:
                self._replace_damaged(error)
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def _replace_damaged(self, error: Exception) -> None:
        self._disconnect()
        self.undo_after = 0
        try:
            self._db = replace_damaged(self.path, self._budget, error)
            self._recount(self._db)
        except (Transient, OSError, sqlite3.OperationalError) as full:
            self._disconnect()
            self._report_full(str(full))

    def _recount(self, db: sqlite3.Connection) -> None:
        tally = self._no_statistics()
        for row in db.execute(f"SELECT {COUNTED} FROM windows"):  # noqa: S608 - constant text
            tally.add(*row)
        dropped = dict(db.execute("SELECT y, n FROM dropped"))
        with self._lock:
            self._tally, self._dropped = tally, dropped

    def recent(
        self, limit: int, *, labelled: bool = True, wanted: Callable[[RowKind], bool] | None = None
    ) -> WindowSet:
        """The newest windows, oldest first, including those that wait for a commit.

        Args:
            limit: maximal number; bounded by :data:`MAX_READ_BYTES` too, with contexts by the budget.
            labelled: only windows with a class of ``label``; ignored if ``wanted`` is given.
            wanted: whether to take a window of that kind.

        Raises:
            Transient: the file cannot be read now, or the store was closed.
        """
        with self._disk:
            if self._closed:
                raise Transient("the window store is closed: the task has changed")
            self.commit()
            wanted = wanted or (has_label if labelled else anything)
            # complete in memory: values that take a byte on disk, and contexts without samples
            most = MAX_READ_BYTES if self._task.window.context_s is None else self._budget
            limit = min(limit, max(1, min(most, MAX_READ_BYTES) // whole_bytes(self._task)))
            try:
                windows = as_set(self._task, self._rows(limit, wanted))
            except sqlite3.OperationalError as error:
                raise sorted_for(self.path, error) from None
            except _DAMAGE as error:
                self._replace_damaged(error)
                windows = as_set(self._task, self._rows(limit, wanted))
        return windows

    def _rows(self, limit: int, wanted: Callable[[RowKind], bool]) -> list[WindowRow]:
        def is_wanted(row: WindowRow) -> bool:
            side = self.rule.side(row.start)
            return wanted(RowKind(row.present, labelled_for(row.y, row.targets, self._keys), side))

        # If a window that lacks only a label is not wanted, no window without a label is.
        alone = not wanted(RowKind(b"\1" * len(self._task.modalities), ()))
        stored = () if self._db is None else newest_rows(self._db, labelled_alone=alone)
        rows = [*islice(filter(is_wanted, stored), limit)][::-1]
        with self._lock:
            rows += [row for row in self._pending if is_wanted(row)]
        return rows[-limit:]

    def read(self, ask: Callable[[sqlite3.Connection, Task], T]) -> T:
        """Ask the file something, after the windows that wait were committed.

        Raises:
            Transient: the file cannot be read now, or the store was closed.
            Refused: by ``ask``.
        """
        with self._disk:
            db = self._ready()
            try:
                return ask(db, self._task)
            except sqlite3.OperationalError as error:
                raise sorted_for(self.path, error) from None
            except _DAMAGE as error:
                self._replace_damaged(error)
                raise Transient(f"{self.path} was damaged ({error}): a new file was begun") from None

    def change(self, work: Callable[[sqlite3.Connection, StoreStatistics], T]) -> T:
        """Change stored windows in one transaction, which is durable when this returns.

        Raises:
            Transient: the disk does not take it, or the store was closed: nothing changed.
            Refused: by ``work``.
        """

        def synced(db: sqlite3.Connection, _task: Task) -> T:
            tally = self._tally.copy()
            db.execute("PRAGMA synchronous=FULL")  # the commit syncs the WAL, and so all windows before it
            try:
                with db:
                    db.execute("BEGIN IMMEDIATE")
                    answer = work(db, tally)
                    before_commit(self.path)
            finally:
                db.execute("PRAGMA synchronous=NORMAL")
            after_commit(self.path)
            with self._lock:
                self._tally = tally
            return answer

        return self.read(synced)

    def _ready(self) -> sqlite3.Connection:
        if self._closed:
            raise Transient("the window store is closed: the task has changed")
        self.commit()  # on a full disk windows wait in memory, and the file can be read
        db = self._connect()
        if db is None:
            raise Transient(self.trouble[1] if self.trouble else f"{self.path} cannot be opened now")
        return db

    def snapshot(self) -> StoreSnapshot:
        """Counts, including the windows that wait for a commit."""
        with self._lock:
            tally = self._tally.copy()
            for row in (*self._writing, *self._pending):
                tally.take(row)
            return snapshot_of(tally, self._task, self._dropped, self._lost)

    def close(self) -> None:
        """Commit and close."""
        with self._disk:
            self.commit()
            self._disconnect()
            self._closed = True
