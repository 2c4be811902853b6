"""The windows on disk: a SQLite file under a byte budget, written in batches to spare the SD card.

A window is kept in memory until the next commit: SIGKILL or a power cut loses at most that batch. When the
budget is full, the oldest windows of the most frequent class go, so that rare classes stay; drops are counted
by class. A full disk is counted and logged, and the agent goes on.

Shapes: B windows, M modalities, C channels, T samples.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from edge_agent.tally import Stock, Tally
from models import windowset
from models.contract import WindowSet
from protocol.errors import Transient
from protocol.frame import digest
from protocol.task import Task

_log = structlog.get_logger("edge_agent.store")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS windows (
  id INTEGER PRIMARY KEY, y INTEGER NOT NULL, present BLOB NOT NULL, quality BLOB NOT NULL, x BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_class ON windows (y, id);
CREATE TABLE IF NOT EXISTS dropped (y INTEGER PRIMARY KEY, n INTEGER NOT NULL);
"""
MAX_PENDING: Final = 2048
"""Windows that wait for a commit. When full (the disk is), the oldest of them is dropped and counted."""
_SLICE: Final = 16
_SLACK_BYTES: Final = 1024 * 1024
COMMIT_WINDOWS: Final = 256
"""A batch of this size is committed at once."""


@dataclass(frozen=True)
class _Row:
    y: int
    present: bytes
    quality: bytes
    x: bytes


def grid_digest(task: Task) -> str:
    """Names the shape of a task's windows: the same grid and labels, the same store."""
    parts = [m.model_dump(include={"name", "channels", "rate_hz", "unit"}) for m in task.modalities]
    return digest(repr((parts, task.window.model_dump(), task.labels)).encode())[:12]


class Store:
    """Windows of one grid. Thread-safe; everything but :meth:`add` may touch the disk."""

    def __init__(self, folder: Path, task: Task, budget_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"windows-{grid_digest(task)}.sqlite3"
        self._task = task
        self._budget = budget_bytes
        self._lock = threading.RLock()
        self._pending: list[_Row] = []
        self._dropped: dict[int, int] = {}
        self._lost = 0
        self._full = False
        self._shapes = [(m.name, m.channels, task.samples(m.name)) for m in task.modalities]
        self._db: sqlite3.Connection | None = _open_or_move_aside(self.path, budget_bytes)
        self._tally = self._count()

    @property
    def pending(self) -> int:
        """Windows that wait for a commit."""
        return len(self._pending)

    def add(self, windows: WindowSet) -> None:
        """Take windows; they reach the disk at the next :meth:`commit`. Touches no disk."""
        rows = []
        for b in range(len(windows)):
            present = np.ascontiguousarray(windows.present_BM[b])
            quality = np.where(present, windows.quality_BM[b], np.float32(1)).astype(np.float32)
            x = b"".join(
                windows.x[name][b].astype("<f4").tobytes()
                for m, (name, *_) in enumerate(self._shapes)
                if present[m]
            )
            rows.append(_Row(int(windows.y_B[b]), present.tobytes(), quality.tobytes(), x))
        with self._lock:
            self._pending += rows
            excess = self._pending[: max(0, len(self._pending) - MAX_PENDING)]
            del self._pending[: len(excess)]
            self._lost += len(excess)

    def commit(self) -> bool:
        """Write what waits and evict what is over the budget, at once. False when the disk refuses."""
        with self._lock:
            if not self._pending or self._db is None:
                return True
            before = self._dropped.copy()
            try:
                with self._db:
                    self._insert(self._db)
            except sqlite3.OperationalError as error:  # the disk is full, or read-only
                self._tally, self._dropped = self._count(), before
                if not self._full:
                    _log.error(
                        "windows cannot be written; the agent goes on", file=str(self.path), error=str(error)
                    )
                self._full = True
                return False
            except sqlite3.DatabaseError as error:  # the file was damaged while we ran
                self._db.close()
                self._db = _anew(self.path, self._budget, error)
                self._tally = self._count()
                return False
            self._pending, self._full = [], False
            return True

    def _insert(self, db: sqlite3.Connection) -> None:
        for at in range(0, len(self._pending), _SLICE):
            rows = self._pending[at : at + _SLICE]
            db.executemany(
                "INSERT INTO windows (y, present, quality, x) VALUES (?, ?, ?, ?)",
                [(r.y, r.present, r.quality, r.x) for r in rows],
            )
            for row in rows:
                self._tally.add(row.y, row.present, row.quality, len(row.x))
            self._evict(db)

    def recent(self, limit: int, *, labelled: bool = True) -> WindowSet:
        """The newest windows, oldest first, those that wait for a commit included."""
        self.commit()
        where = "WHERE y >= 0" if labelled else ""
        with self._lock:
            rows = [
                _Row(*row)
                for row in self._connection().execute(
                    f"SELECT y, present, quality, x FROM windows {where} ORDER BY id DESC LIMIT ?",  # noqa: S608 - our words
                    (limit,),
                )
            ]
            waiting = [row for row in self._pending if row.y >= 0 or not labelled] if self._full else []
        return self._as_set((rows[::-1] + waiting)[-limit:])

    def stock(self) -> Stock:
        """Counts; what waits for a commit is included."""
        with self._lock:
            tally = Tally(len(self._shapes), len(self._task.labels))
            for name in ("count_K", "present_MK", "quality_M"):
                setattr(tally, name, getattr(self._tally, name).copy())
            tally.size = self._tally.size
            for row in self._pending:
                tally.add(row.y, row.present, row.quality, len(row.x))
            total, seen_M = int(tally.count_K.sum()), tally.present_MK.sum(axis=1)
            names = self._task.modality_names
            return Stock(
                labelled=int(tally.count_K[:-1].sum()),
                total=total,
                bytes=tally.size,
                counts={n: tuple(int(c) for c in tally.present_MK[m, :-1]) for m, n in enumerate(names)},
                missing={n: float(1 - seen_M[m] / total) if total else 1.0 for m, n in enumerate(names)},
                quality={n: _mean(tally.quality_M[m], seen_M[m]) for m, n in enumerate(names)},
                dropped=dict(self._dropped),
                lost=self._lost,
            )

    def close(self) -> None:
        """Commit and close."""
        with self._lock:
            self.commit()
            if self._db is not None:
                self._db.close()
            self._db = None

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise Transient("the window store is closed: the task has changed")
        return self._db

    def _evict(self, db: sqlite3.Connection) -> None:
        """Inside a transaction: delete the oldest of the most frequent class until the budget holds."""
        gone: dict[int, int] = {}
        while self._tally.size > self._budget:
            k = int(self._tally.count_K.argmax())
            y = k if k < len(self._task.labels) else -1
            ids = []
            for row_id, *row in db.execute(
                "SELECT id, y, present, quality, length(x) FROM windows WHERE y = ? ORDER BY id LIMIT 16",
                (y,),
            ):
                if self._tally.size <= self._budget:
                    break
                self._tally.add(*row, sign=-1)
                ids.append((row_id,))
            db.executemany("DELETE FROM windows WHERE id = ?", ids)
            gone[y] = gone.get(y, 0) + len(ids)
        for y, n in gone.items():
            self._dropped[y] = self._dropped.get(y, 0) + n
            db.execute(
                "INSERT INTO dropped VALUES (?, ?) ON CONFLICT (y) DO UPDATE SET n = n + excluded.n", (y, n)
            )

    def _count(self) -> Tally:
        tally = Tally(len(self._shapes), len(self._task.labels))
        db = self._connection()
        for row in db.execute("SELECT y, present, quality, length(x) FROM windows"):
            tally.add(*row)
        self._dropped = dict(db.execute("SELECT y, n FROM dropped"))
        return tally

    def _as_set(self, rows: list[_Row]) -> WindowSet:
        found = windowset.empty(self._task)
        if not rows:
            return found
        x = {name: np.zeros((len(rows), c, t), np.float32) for name, c, t in self._shapes}
        present_BM = np.stack([np.frombuffer(row.present, np.bool_) for row in rows])
        for b, row in enumerate(rows):
            at = 0
            for m, (name, c, t) in enumerate(self._shapes):
                if present_BM[b, m]:
                    x[name][b] = np.frombuffer(row.x, "<f4", c * t, at).reshape(c, t)
                    at += 4 * c * t
        quality_BM = np.stack([np.frombuffer(row.quality, np.float32) for row in rows])
        return WindowSet(x, present_BM, quality_BM, np.array([row.y for row in rows], np.int64))


def _mean(total: float, n: int) -> float:
    return float(min(1.0, max(0.0, total / n))) if n else 1.0


def _open_or_move_aside(path: Path, budget_bytes: int) -> sqlite3.Connection:
    """Open the file; a corrupt one is moved aside and a new one made."""
    try:
        return _open(path, budget_bytes)
    except sqlite3.OperationalError:  # locked, or no room: the file itself may be fine
        raise
    except sqlite3.DatabaseError as error:
        return _anew(path, budget_bytes, error)


def _anew(path: Path, budget_bytes: int, error: Exception) -> sqlite3.Connection:
    number = len(list(path.parent.glob(f"{path.name}.corrupt-*"))) + 1
    aside = path.with_name(f"{path.name}.corrupt-{number}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    _log.error("the window store was corrupt; it was moved aside", file=str(aside), error=str(error))
    return _open(path, budget_bytes)


@contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError:
        db.close()
        raise


def _open(path: Path, budget_bytes: int) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, timeout=5.0)
    with _closed_on_error(db):
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # a power cut loses the last commits, never the file
        db.execute("PRAGMA journal_size_limit = 4194304")
        page = int(db.execute("PRAGMA page_size").fetchone()[0])
        # A hard stop beside the budget: freed pages are used again, so the file stays near its peak.
        db.execute(f"PRAGMA max_page_count = {(budget_bytes + budget_bytes // 2 + _SLACK_BYTES) // page}")
        db.executescript(_SCHEMA)
        db.execute("SELECT count(*), sum(length(x)) FROM windows").fetchone()
    return db
