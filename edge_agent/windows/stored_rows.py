"""SQL on the rows of the window store, inside its transactions: insert, evict, read the newest."""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from edge_agent.windows.rows import WindowRow
from edge_agent.windows.statistics import StoreStatistics
from edge_agent.windows.store_file import evict_above
from runtime.storage.sqlite_writer import used_bytes

COLUMNS: Final = "y, present, quality, x, targets, context, start"
"""Of a row, in the order of ``WindowRow``."""
COUNTED: Final = "y, present, quality, length(x) + coalesce(length(context), 0), targets, start"
"""The arguments of ``StoreStatistics.add``."""
_SLICE: Final = 16


def newest_rows(db: sqlite3.Connection, *, labelled_alone: bool) -> Iterator[WindowRow]:
    """Stored windows, the newest first; ``labelled_alone``: only those with a label of any target."""
    where = "WHERE +y <> -1" if labelled_alone else ""  # + orders by id instead of the index
    query = f"SELECT {COLUMNS} FROM windows {where} ORDER BY id DESC"  # noqa: S608 - constant text
    return (WindowRow(*row) for row in db.execute(query))


def insert(
    db: sqlite3.Connection,
    rows: Iterable[WindowRow],
    tally: StoreStatistics,
    dropped: dict[int, int],
    budget: int,
) -> None:
    """Insert rows; after each, delete the oldest of the most frequent class until ``budget`` bytes hold.

    Adds to ``tally``, and to ``dropped`` by class.
    """
    for row in rows:
        db.execute(
            f"INSERT INTO windows ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constant text
            (row.y, row.present, row.quality, row.x, row.targets, row.context, row.start),
        )
        tally.take(row)
        _evict(db, tally, dropped, budget)


def _evict(db: sqlite3.Connection, tally: StoreStatistics, dropped: dict[int, int], budget: int) -> None:
    limit, evicted = evict_above(budget), dict[int, int]()
    while (crowded := used_bytes(db) > limit) or tally.size > budget:
        y, ids = tally.most_frequent(), []
        oldest = f"SELECT id, {COUNTED} FROM windows WHERE y = ? ORDER BY id LIMIT ?"  # noqa: S608 - constant text
        for row_id, *row in db.execute(oldest, (y, _SLICE)).fetchall():
            if not crowded and tally.size <= budget:
                break
            tally.add(*row, sign=-1)
            ids.append((row_id,))
        if not ids:
            raise sqlite3.DatabaseError(f"the counts are wrong: no window of class {y} is stored")
        db.executemany("DELETE FROM windows WHERE id = ?", ids)
        db.executemany("DELETE FROM given WHERE window = ?", ids)
        evicted[y] = evicted.get(y, 0) + len(ids)
    for y, n in evicted.items():
        dropped[y] = dropped.get(y, 0) + n
        db.execute(
            "INSERT INTO dropped VALUES (?, ?) ON CONFLICT (y) DO UPDATE SET n = n + excluded.n", (y, n)
        )
