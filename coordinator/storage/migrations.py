"""Migrations of the SQLite files in a state folder: a copy before each step, and the way back.

The header of a file holds the version of its tables (``user_version``) and the oldest version with which a
release can use it (``application_id``): a step that only adds columns with defaults, tables, or keys of JSON
values leaves the latter as it is. Before a step the file is copied to ``<name>.v<N>``, checked and synced.
"""

import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.storage.backup import copy_checked
from protocol.errors import Misconfigured
from runtime.storage.files import disk_errors, put_in_place, remove, rename, sync_folder
from runtime.storage.sqlite import require_index, sorted_error

KEPT: Final = 2
"""Copies of a file that are kept."""
_WAIT_S: Final = 2.0
ASIDE: Final = ".newer"
"""Suffix of the newer release's file, after the earlier copy replaced it."""
COMMAND: Final = "lichen coordinator downgrade"


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The version of a file's tables, and the oldest version with which a release can use them."""

    version: int
    readable_from: int

    @classmethod
    def of(cls, run: Callable[[str], Any]) -> "TableVersion":
        """Read a file's header; ``run`` runs a statement."""
        version, since = (
            int(run(f"PRAGMA {name}").fetchone()[0]) for name in ("user_version", "application_id")
        )
        return cls(version, since or version)

    def write(self, run: Callable[[str], object]) -> None:
        """Write it into the file, in the open transaction."""
        run(f"PRAGMA user_version={self.version}")
        run(f"PRAGMA application_id={self.readable_from}")


def require_readable(path: Path, found: TableVersion, known: int) -> None:
    """Check whether this release can use a file.

    Raises:
        Misconfigured: it cannot; the message says what to do.
    """
    if found.readable_from <= known:
        return
    copy = require_copy(path, found, known)
    raise Misconfigured(
        f"{_newer(path, found, known)}; install that release again, or go back to {copy.name}: {COMMAND} "
        "(docs/install.md says what becomes of what came since)"
    )


def require_copy(path: Path, found: TableVersion, known: int) -> Path:
    """The newest copy of a file that this release can use.

    Raises:
        Misconfigured: there is none.
    """
    if older := [version for version in copies_of(path) if version <= known]:
        return copy_of(path, max(older))
    raise Misconfigured(
        f"{_newer(path, found, known)}; there is no copy of it from before: install that release again"
    )


def _newer(path: Path, found: TableVersion, known: int) -> str:
    return (
        f"{path}: written by a newer lichen (tables {found.version}, usable from {found.readable_from} on; "
        f"known here: {known})"
    )


def copy_of(database: Path, version: int) -> Path:
    """Path of the copy made before the tables of ``version`` were changed."""
    return database.with_name(f"{database.name}.v{version}")


def copies_of(database: Path) -> Mapping[int, Path]:
    """All existing copies, by version."""
    name = re.compile(re.escape(database.name) + r"\.v(\d{1,6})\Z")
    found = ((name.match(path.name), path) for path in database.parent.glob(f"{database.name}.v*"))
    return {int(match[1]): path for match, path in found if match}


def keep_copy(database: Path, version: int) -> None:
    """Copy a database before its tables are changed; only the newest copies are kept.

    Raises:
        Transient: the disk is full, or the database is damaged; nothing may be changed then.
        Misconfigured: the folder is not writable.
    """
    copy_checked(database, copy_of(database, version))
    for old in sorted(copies_of(database))[:-KEPT]:
        remove(copy_of(database, old))


def put_back(database: Path, known: int, place: Path | None = None) -> str:
    """Replace a file that this release cannot use by its newest usable copy.

    A repeated call does nothing, or finishes an interrupted one.

    Args:
        database: the file; it is moved aside.
        known: the version of this release's tables.
        place: where the copy goes, if not in place of the file.

    Returns:
        What was done; empty if there was nothing to do.

    Raises:
        Misconfigured: the file cannot be used, and there is no copy.
        Transient: the disk is full, or another process has the file open.
    """
    aside, older = database.with_name(database.name + ASIDE), [v for v in copies_of(database) if v <= known]
    cut_off = not database.is_file() and aside.is_file() and bool(older) and place is None
    if not (cut_off or _is_unusable(database, known)):
        return ""
    copy = copy_of(database, max(older))
    part = copy.with_name(copy.name + ".part")
    with disk_errors(part):
        part.touch(mode=0o600)
        shutil.copyfile(copy, part)
        if place is not None:
            put_in_place(part, place)
        if not cut_off:
            rename(database, aside)
            sync_folder(database.parent)
        if place is None:
            put_in_place(part, database)
    return f"{database.name}: as of {copy.name} again; the newer one is {aside.name}"


def _is_unusable(database: Path, known: int) -> bool:
    """Whether there is a newer file with a copy to go back to; its WAL is empty afterwards."""
    if not database.is_file():
        return False
    require_index(database)
    try:
        with closing(sqlite3.connect(database, isolation_level=None, timeout=_WAIT_S)) as opened:
            found = TableVersion.of(opened.execute)
            if found.readable_from <= known:
                return False
            require_copy(database, found, known)
            opened.execute("PRAGMA journal_mode=DELETE")  # no other process has it open, and it is one file
    except sqlite3.Error as error:
        raise sorted_error(error, database, waited_s=_WAIT_S) from None
    return True
