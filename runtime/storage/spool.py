"""The durable outbox: update frames, and the quantizer's error carry, in one SQLite file.

A frame and its carry are written in one transaction, synced to the disk (``synchronous=FULL``): after a power
cut either both are there, or neither. SQLite does not notice a damaged value, so frames are checked against
their digest and carries against a checksum.
"""

import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import digest as digest_of
from runtime.storage.files import NOT_OURS, disk_errors
from runtime.storage.sqlite import Place, is_damage, sqlite_errors
from runtime.storage.sqlite_writer import (
    add_columns,
    closed_on_error,
    move_aside,
    open_writer,
    require_sound,
    transaction,
)

_log = structlog.get_logger(__name__)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entry(
  id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, round INTEGER NOT NULL, digest TEXT NOT NULL,
  size INTEGER NOT NULL, created_wall REAL NOT NULL, payload BLOB NOT NULL, UNIQUE(task, round));
CREATE INDEX IF NOT EXISTS entry_digest ON entry(digest);
CREATE TABLE IF NOT EXISTS carry(
  task TEXT NOT NULL, name TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL, crc INTEGER,
  PRIMARY KEY(task, name));
"""
_WAL_BYTES: Final = 1024 * 1024
_KEPT_ASIDE: Final = 3
"""Number of corrupt files kept for people; after that the newest replaces the last."""


@dataclass(frozen=True)
class SpoolEntry:
    """An update that waits for its receipt. ``created_wall``: Unix seconds."""

    task: str
    round: int
    digest: str
    size: int
    created_wall: float


class Spool:
    """See the module. Synchronous and thread-safe; call it through ``asyncio.to_thread``.

    Args:
        path: the SQLite file; a corrupt one is moved aside to ``<name>.corrupt-<n>`` and logged.
        budget_bytes: for frames and carries together; above it the oldest frame is dropped and counted.
        wall: Unix seconds, for ``created_wall``.

    Raises:
        Misconfigured: no permission for the file, or its disk is read-only.
        Transient: the disk is full or fails, or another process holds the file.
    """

    def __init__(self, path: Path, budget_bytes: int, *, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._budget = budget_bytes
        self._wall = wall
        self._lock = threading.Lock()
        self.dropped = 0
        """Frames dropped for lack of room since the start."""
        self.rotten = 0
        """Damaged frames and carries dropped since the start."""
        try:
            with disk_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            with sqlite_errors(path, opening=True):
                self._db = self._open_or_replace()
            self._place = Place(path)
        except OSError as error:
            raise Misconfigured(f"{path}: {error.strerror}; {NOT_OURS}") from None

    def _open_or_replace(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            aside = move_aside(self._path, _KEPT_ASIDE)
            _log.error("spool_moved_aside", moved_to=str(aside), error=str(error))
            return self._open()

    def _open(self) -> sqlite3.Connection:
        db = open_writer(self._path, wal_bytes=_WAL_BYTES)
        with closed_on_error(db):
            require_sound(db)
            db.executescript(_SCHEMA)
            add_columns(db, "carry", {"crc": "INTEGER"})
        return db

    def require_there(self) -> None:
        """Check that the file is still in its place; does not wait for another thread.

        Raises:
            Transient: the folder was removed, or another disk is mounted over it.
        """
        self._place.require()

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        """One transaction at a time.

        Raises:
            Transient: the disk is full or cannot be written now, and nothing changed; or the file is gone.
        """
        with self._lock, sqlite_errors(self._path):
            with transaction(self._db, self._path):
                yield self._db
            self._place.require()

    def put(
        self,
        *,
        task: str,
        round_: int,
        digest: str,
        payload: bytes,
        carry: Mapping[str, NDArray[np.float32]] | None,
    ) -> None:
        """Store a frame and, unless None, replace the task's whole carry. Durable when it returns.

        Args:
            task: with ``round_`` the key: an older frame of the same key is replaced.
            round_: the round the update is for.
            digest: SHA-256 of the payload, in hexadecimal.
            payload: the frame.
            carry: tensor name -> float32 of any shape.

        Raises:
            Refused: FULL, it is larger than the whole budget; nothing changed.
            Transient: the disk is full; nothing changed.
        """
        with self._use() as db:
            db.execute("DELETE FROM entry WHERE task=? AND round=?", (task, round_))
            if carry is not None:
                db.execute("DELETE FROM carry WHERE task=?", (task,))
                rows = [(task, name, *_packed(x)) for name, x in carry.items()]
                db.executemany("INSERT INTO carry(task, name, shape, data, crc) VALUES(?, ?, ?, ?, ?)", rows)
            dropped = self._make_room(db, len(payload))
            db.execute(
                "INSERT INTO entry(task, round, digest, size, created_wall, payload) VALUES(?,?,?,?,?,?)",
                (task, round_, digest, len(payload), self._wall(), payload),
            )
        if dropped:
            self.dropped += len(dropped)
            _log.warning("updates_dropped", rounds=dropped)

    def _make_room(self, db: sqlite3.Connection, size: int) -> list[int]:
        dropped: list[int] = []
        while _used(db) + size > self._budget:
            oldest = db.execute("SELECT id, round FROM entry ORDER BY id LIMIT 1").fetchone()
            if oldest is None:
                raise Refused(
                    Reason.FULL,
                    f"an update of {size} bytes with its carry does not fit {self._budget} bytes of spool",
                )
            db.execute("DELETE FROM entry WHERE id=?", (oldest[0],))
            dropped.append(oldest[1])
        return dropped

    def pending(self) -> list[SpoolEntry]:
        """Updates that wait for a receipt, oldest first."""
        with self._use() as db:
            rows = db.execute(
                "SELECT task, round, digest, size, created_wall FROM entry ORDER BY id"
            ).fetchall()
        return [SpoolEntry(*row) for row in rows]

    def payload(self, digest: str) -> bytes:
        """The frame of that digest, verified.

        Raises:
            KeyError: it is not here (any more). A damaged one is dropped and counted: its windows are still
                in the store, and the offer comes again.
        """
        with self._use() as db:
            row = db.execute("SELECT payload FROM entry WHERE digest=? LIMIT 1", (digest,)).fetchone()
        if row is None:
            raise KeyError(f"no update {digest} in the spool")
        payload = bytes(row[0])
        if digest_of(payload) != digest:
            self.clear(digest)
            self.rotten += 1
            _log.error("update_corrupted", detail="it will be made again", digest=digest)
            raise KeyError(f"the update {digest} was damaged in the spool")
        return payload

    def clear(self, digest: str) -> bool:
        """Delete a frame: its receipt came. True if it was here."""
        with self._use() as db:
            return db.execute("DELETE FROM entry WHERE digest=?", (digest,)).rowcount > 0

    def carry(self, task: str) -> dict[str, NDArray[np.float32]]:
        """The error carry of a task; empty if there is none, or if it was damaged (dropped and counted)."""
        with self._use() as db:
            rows = db.execute("SELECT name, shape, data, crc FROM carry WHERE task=?", (task,)).fetchall()
            rotten = [name for name, shape, data, crc in rows if crc not in (None, _crc(shape, data))]
            if rotten:
                db.execute("DELETE FROM carry WHERE task=?", (task,))
        if rotten:
            self.rotten += 1
            _log.error("error_carry_corrupted", task=task, tensor=rotten[0])
            return {}
        return {name: _unpacked(shape, data) for name, shape, data, _ in rows}

    @property
    def bytes_used(self) -> int:
        """Frames and carries, in bytes."""
        with self._use() as db:
            return _used(db)

    def close(self) -> None:
        """Close the file; the spool cannot be used afterwards."""
        with self._lock:
            self._db.close()


def _used(db: sqlite3.Connection) -> int:
    frames = "(SELECT coalesce(sum(size), 0) FROM entry)"
    carries = "(SELECT coalesce(sum(length(data)), 0) FROM carry)"
    return int(db.execute(f"SELECT {frames} + {carries}").fetchone()[0])


def _packed(x: NDArray[np.float32]) -> tuple[str, bytes, int]:
    """Shape, values and their checksum."""
    shape, data = ",".join(map(str, x.shape)), np.ascontiguousarray(x, dtype="<f4").tobytes()
    return shape, data, _crc(shape, data)


def _crc(shape: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(shape.encode()))


def _unpacked(shape: str, data: bytes) -> NDArray[np.float32]:
    dims = tuple(int(d) for d in shape.split(",")) if shape else ()
    return np.frombuffer(data, dtype="<f4").reshape(dims).astype(np.float32)
