"""The windows on disk: a SQLite file under a byte budget, written in batches to spare the SD card.

A window is kept in memory until the next commit: SIGKILL or a power cut loses at most that batch. When the
budget is full, the oldest windows of the most frequent class go, so that rare classes stay; drops are counted
by class. A disk that is full, from the start or later, is logged and what it costs is counted: windows wait
in memory, and the agent goes on.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

import structlog

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
    begin_anew,
    evict_above,
    open_file,
    rows_at_once,
    sorted_for,
)
from models.contract import WindowSet
from models.data.labels.targets import keys_of
from protocol.errors import Transient
from protocol.frames.frame import digest
from protocol.tasks.task import Task
from runtime.storage.files import after_commit, before_commit
from runtime.storage.sqlite_writer import used_bytes

_log = structlog.get_logger(__name__)
MAX_PENDING: Final = 2048
"""Windows that wait for a commit. When full (the disk is), the oldest of them is dropped and counted."""
MAX_PENDING_BYTES: Final = 128 * 1024 * 1024
"""And of large ones no more than would fill this, were they whole."""
MAX_READ_BYTES: Final = 512 * 1024 * 1024
"""Of windows with contexts, in one round: the worker reads a file of four times as much, and no larger."""
_SLICE: Final = 16
_COLUMNS: Final = "y, present, quality, x, targets, context"
_COUNTED: Final = "y, present, quality, length(x) + coalesce(length(context), 0), targets"
COMMIT_WINDOWS: Final = 256  # a batch of this size is committed at once
_DAMAGE: Final = (sqlite3.DatabaseError, ValueError, IndexError)
"""What reading rows raises that are not what was written."""


def grid_digest(task: Task) -> str:
    """Names the shape of a task's windows: the same grid and labels (and any context), the same store.

    Keys of the window that have their default do not count: a release that adds one keeps devices' stores.
    """
    parts = [m.model_dump(include={"name", "channels", "rate_hz", "unit"}) for m in task.modalities]
    window = task.window.model_dump(exclude={"context_s"}, exclude_defaults=True)
    return digest(repr((parts, window, task.labels)).encode())[:12]


class WindowStore:
    """Windows of one grid. Thread-safe; :meth:`add`, :meth:`snapshot` and ``pending`` do not touch the disk.

    Raises:
        Misconfigured: its file is not writable for us.
    """

    disabled_reason = ""

    def __init__(self, folder: Path, task: Task, budget_bytes: int) -> None:
        self.path = folder / f"windows-{grid_digest(task)}.sqlite3"
        self._task = task
        self._budget = budget_bytes
        self._disk = threading.RLock()  # taken before _lock: one user of the file at a time
        self._lock = threading.Lock()  # what is in memory; held for no longer than it takes to copy it
        self._pending: list[WindowRow] = []
        self._writing: list[WindowRow] = []
        self._dropped: dict[int, int] = {}
        self._lost = 0
        self.trouble: tuple[float, str] | None = None
        """Since when (Unix seconds) and why the disk takes nothing; None while it does."""
        self._closed = False
        self._keys = keys_of(task)
        self._tally = StoreStatistics(len(task.modalities), len(task.labels), self._keys)
        self._db: sqlite3.Connection | None = None
        self._connect()

    def use(self, task: Task) -> None:
        """Another task on the same grid: what is here counts for its targets."""
        with self._disk:
            self._task, keys = task, keys_of(task)
            if keys != self._keys and not self._closed:
                self._keys = keys
                self._disconnect()
                self._connect()  # counts anew

    @property
    def pending(self) -> int:
        """Windows that wait for a commit."""
        return len(self._pending)

    @property
    def is_due(self) -> bool:
        """Whether so many wait that they should be committed at once."""
        return len(self._pending) >= min(COMMIT_WINDOWS, max(1, self._most_pending // 2))

    @property
    def _most_pending(self) -> int:
        return max(1, min(MAX_PENDING, MAX_PENDING_BYTES // whole_bytes(self._task)))

    def add(self, windows: WindowSet) -> None:
        """Take windows; they reach the disk at the next :meth:`commit`. Touches no disk."""
        rows = rows_of(self._task, windows)
        with self._lock:
            self._pending += rows
            self._shed_excess()

    def _shed_excess(self) -> None:
        excess = max(0, len(self._pending) - self._most_pending)
        del self._pending[:excess]
        self._lost += excess

    def commit(self) -> bool:
        """Write what waits and evict what is over the budget, at once. False when the disk refuses."""
        with self._disk:
            while self._pending and not self._closed:
                if not self._commit_some():
                    return False
            return True

    def _commit_some(self) -> bool:
        """As many windows in one transaction as the WAL has room for."""
        with self._disk:
            db = self._connect()
            if db is None:
                return False
            with self._lock:
                count = rows_at_once((row.values_bytes for row in self._pending), self._budget)
                self._writing, self._pending = self._pending[:count], self._pending[count:]
                tally, dropped = self._tally.copy(), dict(self._dropped)
            written = False
            try:
                with db:
                    self._insert(db, tally, dropped)
                    before_commit(self.path)
                after_commit(self.path, synced=False)
                written = True
            except sqlite3.OperationalError as error:  # the disk is full, or read-only
                self._say_full(str(sorted_for(self.path, error)))
            except _DAMAGE as error:  # the file was damaged while we ran
                self._begin_anew(error)
            finally:
                with self._lock:
                    if written:
                        self._tally, self._dropped = tally, dropped
                    else:
                        self._pending = self._writing + self._pending
                        self._shed_excess()
                    self._writing = []
            if written:
                self._say_recovered()
            return written

    def _say_full(self, why: str) -> None:
        if self.trouble is None:
            _log.error("windows_not_written", file=str(self.path), error=why)
            self.trouble = time.time(), why

    def _say_recovered(self) -> None:
        if self.trouble is not None:
            since, self.trouble = self.trouble[0], None
            _log.info(
                "windows_written_again",
                file=str(self.path),
                after_s=round(time.time() - since),
                lost=self._lost,
            )

    def _connect(self) -> sqlite3.Connection | None:
        """The open file; tried again at each call while there is no room for it."""
        if self._db is None:
            try:
                self._db = open_file(self.path, self._budget)
                self._recount(self._db)
            except (Transient, OSError, sqlite3.OperationalError) as error:
                self._disconnect()
                self._say_full(str(error))
            except _DAMAGE as error:
                self._begin_anew(error)
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def _begin_anew(self, error: Exception) -> None:
        self._disconnect()
        try:
            self._db = begin_anew(self.path, self._budget, error)
            self._recount(self._db)
        except (Transient, OSError, sqlite3.OperationalError) as full:
            self._disconnect()
            self._say_full(str(full))

    def _recount(self, db: sqlite3.Connection) -> None:
        tally = StoreStatistics(len(self._task.modalities), len(self._task.labels), self._keys)
        for row in db.execute(f"SELECT {_COUNTED} FROM windows"):  # noqa: S608 - our words
            tally.add(*row)
        dropped = dict(db.execute("SELECT y, n FROM dropped"))
        with self._lock:
            self._tally, self._dropped = tally, dropped

    def _insert(self, db: sqlite3.Connection, tally: StoreStatistics, dropped: dict[int, int]) -> None:
        """Inside a transaction."""
        for row in self._writing:
            db.execute(
                f"INSERT INTO windows ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608 - our words
                (row.y, row.present, row.quality, row.x, row.targets, row.context),
            )
            tally.take(row)
            self._evict(db, tally, dropped)

    def recent(
        self, limit: int, *, labelled: bool = True, wanted: Callable[[RowKind], bool] | None = None
    ) -> WindowSet:
        """The newest windows, oldest first, those that wait for a commit included.

        Args:
            limit: at most so many; with contexts, no more than fit the budget and :data:`MAX_READ_BYTES`.
            labelled: only those with a class of ``label``; where ``wanted`` is given, it alone decides.
            wanted: whether a window of that kind is taken.

        Raises:
            Transient: the file cannot be read now, or the store was closed.
        """
        with self._disk:
            if self._closed:
                raise Transient("the window store is closed: the task has changed")
            self.commit()
            wanted = wanted or (has_label if labelled else anything)
            if self._task.window.context_s is not None:  # in memory they are whole, whatever is known of them
                limit = min(limit, max(1, min(self._budget, MAX_READ_BYTES) // whole_bytes(self._task)))
            try:
                found = as_set(self._task, self._rows(limit, wanted))
            except sqlite3.OperationalError as error:
                raise sorted_for(self.path, error) from None
            except _DAMAGE as error:
                self._begin_anew(error)
                found = as_set(self._task, self._rows(limit, wanted))
        return found

    def _rows(self, limit: int, wanted: Callable[[RowKind], bool]) -> list[WindowRow]:
        def is_wanted(row: WindowRow) -> bool:
            return wanted(RowKind(row.present, labelled_for(row.y, row.targets, self._keys)))

        rows: list[WindowRow] = []
        if self._db is not None:
            # Where a window that has all but a label is not wanted, none without a label is.
            unlabelled = RowKind(b"\1" * len(self._task.modalities), ())
            where = "" if wanted(unlabelled) else "WHERE +y <> -1"  # +: by id, not by the index
            query = f"SELECT {_COLUMNS} FROM windows {where} ORDER BY id DESC"  # noqa: S608 - our words
            newest = (WindowRow(*row) for row in self._db.execute(query))
            rows = [*islice(filter(is_wanted, newest), limit)][::-1]
        with self._lock:
            rows += [row for row in self._pending if is_wanted(row)]
        return rows[-limit:]

    def snapshot(self) -> StoreSnapshot:
        """Counts; what waits for a commit is included."""
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

    def _evict(self, db: sqlite3.Connection, tally: StoreStatistics, dropped: dict[int, int]) -> None:
        """Inside a transaction: delete the oldest of the most frequent class until the budget holds."""
        limit, gone = evict_above(self._budget), dict[int, int]()
        while (crowded := used_bytes(db) > limit) or tally.size > self._budget:
            y, ids = tally.most_frequent(), []
            oldest = f"SELECT id, {_COUNTED} FROM windows WHERE y = ? ORDER BY id LIMIT ?"  # noqa: S608 - our words
            for row_id, *row in db.execute(oldest, (y, _SLICE)).fetchall():
                if not crowded and tally.size <= self._budget:
                    break
                tally.add(*row, sign=-1)
                ids.append((row_id,))
            if not ids:
                raise sqlite3.DatabaseError(f"no window of class {y} is there, though it was counted")
            db.executemany("DELETE FROM windows WHERE id = ?", ids)
            gone[y] = gone.get(y, 0) + len(ids)
        for y, n in gone.items():
            dropped[y] = dropped.get(y, 0) + n
            db.execute(
                "INSERT INTO dropped VALUES (?, ?) ON CONFLICT (y) DO UPDATE SET n = n + excluded.n", (y, n)
            )
