"""Labels that a person gives to stored windows.

A window is named by its row and the start of its SHA-256: rows are numbered anew in a new file, and a label
must reach the window that the person saw, or none. Each label is one transaction that is synced before the
answer (:meth:`WindowStore.change`). ``given`` lists the labels that can be undone: it is emptied when a round
has read the windows.
"""

import hashlib
import re
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from edge_agent.windows.counting_store import CountingStore
from edge_agent.windows.rows import UNLABELLED, WindowRow
from edge_agent.windows.statistics import StoreStatistics
from edge_agent.windows.store import WindowStore
from edge_agent.windows.stored_rows import COLUMNS
from protocol.errors import Reason, Refused, Transient
from protocol.tasks.task import Task

MAX_UNDO: Final = 256
"""Labels that can be undone; older ones stay as they are."""
_NAME: Final = re.compile(r"([1-9][0-9]{0,17})-([0-9a-f]{16})\Z")


@dataclass(frozen=True)
class StoredWindow:
    """A window in the file; ``name`` is what a label refers to."""

    name: str
    row: WindowRow


@dataclass(frozen=True)
class GivenLabel:
    """A label that a person gave or took back: class ``y`` of ``window``, which had class ``was`` before.

    Negative classes: no label. ``at``: when it was given, in Unix seconds; ``by``: how.
    """

    window: str
    y: int
    was: int
    at: float
    by: str


def require_store(store: WindowStore | CountingStore) -> WindowStore:
    """The store, for labels.

    Raises:
        Refused: this device stores no windows.
    """
    if isinstance(store, WindowStore):
        return store
    why = f"this device stores no windows ({store.disabled_reason}): there is nothing to label"
    raise Refused(Reason.OUT_OF_BOUNDS, why)


def newest(store: WindowStore, limit: int, *, labelled: bool | None = None) -> list[StoredWindow]:
    """The newest stored windows, the newest first.

    Args:
        store: of the present task.
        limit: maximal number.
        labelled: only those with a class of ``label``, or only those without; None: both.

    Raises:
        Transient: the store cannot be read now.
    """
    where = "" if labelled is None else "WHERE +y >= 0" if labelled else "WHERE +y < 0"
    query = f"SELECT id, {COLUMNS} FROM windows {where} ORDER BY id DESC LIMIT ?"  # noqa: S608 - constant text

    def rows(db: sqlite3.Connection, _task: Task) -> list[StoredWindow]:
        found = ((row_id, WindowRow(*row)) for row_id, *row in db.execute(query, (limit,)))
        return [StoredWindow(_name(row_id, row), row) for row_id, row in found]

    return store.read(rows)


def find(store: WindowStore, name: str) -> StoredWindow:
    """One stored window.

    Raises:
        Refused: it is not stored (any more), or it is no name of a window.
        Transient: the store cannot be read now.
    """
    return store.read(lambda db, _task: StoredWindow(name, _row(db, name)[1]))


def label(store: WindowStore, window: str, y: int, at: float, by: str) -> GivenLabel:
    """Give a window a class of ``label``; durable when this returns.

    Args:
        store: of the present task.
        window: the name.
        y: the class.
        at: now, in Unix seconds.
        by: how it was given, for people.

    Raises:
        Refused: the window is not stored (any more).
        Transient: the disk does not take it; nothing changed.
    """

    def give(db: sqlite3.Connection, tally: StoreStatistics) -> GivenLabel:
        row_id, row = _row(db, window)
        _move(db, tally, row_id, row, y)
        db.execute("INSERT INTO given (window, was, at, by) VALUES (?, ?, ?, ?)", (row_id, row.y, at, by))
        db.execute("DELETE FROM given WHERE seq <= (SELECT max(seq) FROM given) - ?", (MAX_UNDO,))
        return GivenLabel(window, y, row.y, at, by)

    return store.change(give)


def undo(store: WindowStore, expected: str | None = None) -> GivenLabel:
    """Take the last label back; the window has the class that it had before. Durable when this returns.

    Args:
        store: of the present task.
        expected: the window whose label the person wants to take back; None: the last one, whichever it is.

    Raises:
        Refused: there is none since the last round, or it is that of another window.
        Transient: the disk does not take it; nothing changed.
    """

    def take_back(db: sqlite3.Connection, tally: StoreStatistics) -> GivenLabel:
        query = "SELECT seq, window, was, at, by FROM given WHERE seq > ? ORDER BY seq DESC LIMIT 1"
        last = db.execute(query, (store.undo_after,)).fetchone()
        if last is None:
            words = (
                "there is no label to undo: none was given since the last round of training, or its window "
            )
            raise Refused(Reason.OUT_OF_BOUNDS, words + "was dropped; a window can be given another label")
        seq, row_id, was, at, by = last
        row = WindowRow(*db.execute(_BY_ID, (row_id,)).fetchone())
        name = _name(row_id, row)
        if expected is not None and name != expected:
            words = (
                f"the last label is that of window {name} ({by}), not of {expected}: somebody else labels too"
            )
            raise Refused(Reason.OUT_OF_BOUNDS, words)
        _move(db, tally, row_id, row, was)
        db.execute("DELETE FROM given WHERE seq = ?", (seq,))
        return GivenLabel(name, was, row.y, at, by)

    return store.change(take_back)


def end_undo(store: WindowStore | CountingStore) -> None:
    """End the undo of all labels so far: a round has read them. On a full disk it ends in memory alone."""
    if not isinstance(store, WindowStore):
        return
    with suppress(Transient):
        last = store.read(lambda db, _task: db.execute("SELECT max(seq) FROM given").fetchone()[0])
        if last is None or last <= store.undo_after:
            return
        store.undo_after = last
        store.change(lambda db, _tally: db.execute("DELETE FROM given WHERE seq <= ?", (last,)).rowcount)


_BY_ID: Final = f"SELECT {COLUMNS} FROM windows WHERE id = ?"  # noqa: S608 - constant text


def _row(db: sqlite3.Connection, name: str) -> tuple[int, WindowRow]:
    found = _NAME.match(name)
    if found is None:
        raise Refused(
            Reason.MALFORMED, f"{name[:60]!r} is no name of a window; lichen agent label list shows them"
        )
    row_id = int(found[1])
    stored = db.execute(_BY_ID, (row_id,)).fetchone()
    row = None if stored is None else WindowRow(*stored)
    if row is None or _name(row_id, row) != name:
        words = (
            f"window {name} is not stored any more: it was dropped to make room (store.budget_bytes), or the "
        )
        raise Refused(Reason.OUT_OF_BOUNDS, words + "store was begun anew; no window was labelled")
    return row_id, row


def _name(row_id: int, row: WindowRow) -> str:
    return f"{row_id}-{hashlib.sha256(row.present + row.x).hexdigest()[:16]}"


def _move(db: sqlite3.Connection, tally: StoreStatistics, row_id: int, row: WindowRow, y: int) -> None:
    """Inside a transaction."""
    add = partial(
        tally.add, present=row.present, quality=row.quality, x_bytes=row.values_bytes, targets=row.targets,
        start=row.start,
    )  # fmt: skip
    add(row.y, sign=-1)
    add(y)
    db.execute("UPDATE windows SET y = ? WHERE id = ?", (y, row_id))


def class_of(row: WindowRow) -> int | None:
    """The class of ``label``; None if the window has none."""
    return row.y if row.y > UNLABELLED else None
