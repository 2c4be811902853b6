"""What a daemon's folders hold, by name and size, and the tables of its databases, by name and count.

Nothing of their content is read but the schema of databases. Root reads databases as their folder's owner: an
index file that root made beside one would keep the daemon from opening it.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from protocol.errors import LichenError
from runtime.process.run_as_owner import run_as_owner
from runtime.storage.sqlite import open_reader

_MAX_ENTRIES: Final = 2000
_MAX_SEEN: Final = 100_000
_MAX_TABLES: Final = 200
_STEPS: Final = 10_000
"""Instructions of SQLite between two looks at the clock."""
_DATABASE_S: Final = 10.0


def folders(places: Mapping[str, Path]) -> dict[str, Any]:
    """Names, sizes and times of the files below some folders; of large folders the sums alone."""
    return {name: _folder(path) for name, path in places.items()}


def _folder(top: Path) -> dict[str, Any]:
    entries: list[list[Any]] = []
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    errors: list[str] = []
    waiting, seen = [top], 0
    while waiting and seen < _MAX_SEEN:
        folder = waiting.pop()
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            errors.append(f"{folder}: {error.strerror}")
            continue
        for path in inside:
            seen += 1
            try:
                stat = path.lstat()
            except OSError as error:
                errors.append(f"{path}: {error.strerror}")
                continue
            name = path.relative_to(top)
            if path.is_dir() and not path.is_symlink():
                waiting.append(path)
            sums[name.parts[0]] += stat.st_blocks * 512
            counts[name.parts[0]] += 1
            if len(entries) < _MAX_ENTRIES:
                entries.append(
                    [str(name), stat.st_size, f"{stat.st_mode:o}", stat.st_uid, int(stat.st_mtime)]
                )
    return {
        "path": str(top),
        "disk_bytes": dict(sums),
        "files": dict(counts),
        "errors": errors[:20],
        "entries": ["name", "bytes", "mode", "owner", "changed"],
        "listed": entries,
        "not_listed": max(0, seen - len(entries)),
    }


def databases(places: Mapping[str, Path]) -> dict[str, Any]:
    """Schema, version and number of rows of each SQLite file at the top of some folders."""
    found: dict[str, Any] = {}
    for name, top in places.items():
        with run_as_owner(top):
            for file in sorted([*top.glob("*.sqlite3"), *top.glob("*.sqlite3.damaged")]):
                try:
                    found[f"{name}/{file.name}"] = _database(file)
                except (sqlite3.Error, OSError, LichenError) as error:
                    found[f"{name}/{file.name}"] = {"error": f"{type(error).__name__}: {error}"}
    return found


def _database(file: Path) -> dict[str, Any]:
    until = time.monotonic() + _DATABASE_S
    with closing(open_reader(file)) as opened:
        opened.set_progress_handler(lambda: time.monotonic() > until, _STEPS)

        def number(query: str) -> int:
            return int(opened.execute(query).fetchone()[0])

        rows = opened.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        counts: dict[str, Any] = {}
        for name, _ in rows[:_MAX_TABLES]:
            quoted = str(name).replace('"', '""')
            try:
                counts[str(name)] = number(f'SELECT count(*) FROM "{quoted}"')  # noqa: S608 - a quoted name
            except sqlite3.Error as error:
                counts[str(name)] = f"not counted: {error}"
        return {
            "version": number("PRAGMA user_version"),
            "readable_from": number("PRAGMA application_id"),
            "pages": number("PRAGMA page_count"),
            "free_pages": number("PRAGMA freelist_count"),
            "rows": counts,
            "schema": {str(name): str(sql) for name, sql in rows[:_MAX_TABLES]},
        }
