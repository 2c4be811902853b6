"""Applies a power cut to a copy of a node's folder: data lost or torn, name changes undone."""

import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

_WAL: Final = "-wal"
_SHM: Final = "-shm"
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_LARGE_WAL: Final = 1024 * 1024
"""A larger log may be checkpointed in part, and was synced for that: it is kept whole."""


@dataclass(frozen=True, slots=True)
class Name:
    """A change of a name that its folder's disk does not have yet.

    ``content``: of the file that was removed or replaced; None where there was none.
    """

    kind: Literal["create", "mkdir", "replace", "unlink"]
    path: Path
    old: Path | None = None
    content: bytes | None = None

    def moved(self, before: Path, after: Path) -> "Name":
        """The same change below a renamed folder."""
        old = None if self.old is None else _rebased(self.old, before, after)
        return replace(self, path=_rebased(self.path, before, after), old=old)


def _rebased(path: Path, before: Path, after: Path) -> Path:
    return after / path.relative_to(before) if before in path.parents else path


def copy_files(root: Path, after: Path) -> None:
    """Copy a folder as the page cache has it; SQLite's shared memory does not outlive a process."""
    after.mkdir(parents=True)
    for entry in root.iterdir():
        if entry.is_dir():
            copy_files(entry, after / entry.name)
        elif not entry.name.endswith(_SHM):
            (after / entry.name).write_bytes(entry.read_bytes())


def files_below(folder: Path) -> list[Path]:
    """All files, sorted."""
    return sorted(Path(top) / name for top, _, names in os.walk(folder) for name in names)


def mark_old(root: Path) -> None:
    """Note that all files are as they are now (by a time of change that no clock of today gives)."""
    for file in files_below(root):
        os.utime(file, (0, 0))


def is_new(file: Path) -> bool:
    """Whether a file was made or written since :func:`mark_old`."""
    return file.stat().st_mtime_ns != 0


def lose(
    rng: random.Random,
    root: Path,
    after: Path,
    *,
    unsynced: Mapping[Path, bytes],
    names: Mapping[Path, Sequence[Name]],
    foreign: Iterable[Path],
    synced_databases: Iterable[Path],
) -> None:
    """Apply a power cut to the copy ``after`` of ``root``.

    Args:
        rng: decides each outcome.
        root: the folder that the other paths lie in.
        after: its copy.
        unsynced: file -> its last synced content.
        names: folder -> changes of names since its last sync, in order.
        foreign: files that were written beside the seam, without any sync.
        synced_databases: SQLite files whose commits are synced.
    """

    def there(path: Path) -> Path:
        return after / path.relative_to(root)

    whole = set(synced_databases)
    for file in sorted(unsynced):
        _lose_data(rng, there(file), unsynced[file])
    for file in foreign:
        base = file.with_name(file.name.removesuffix(_WAL))
        if file.name.endswith(_WAL):
            if base not in whole:
                _lose_commits(rng, there(file))
        elif not file.name.endswith(_SHM) and not _is_database(file):
            _lose_data(rng, there(file), b"")
    for folder in sorted(names):
        changes = names[folder]
        for change in reversed(changes[rng.randint(0, len(changes)) :]):
            _undo(change, there)


def _lose_data(rng: random.Random, file: Path, synced: bytes) -> None:
    """Keep un-synced data, drop it, or keep a part."""
    if not file.is_file():
        return
    what = rng.random()
    if what < 0.3:  # noqa: PLR2004 - the odds
        return
    if what < 0.6:  # noqa: PLR2004 - the odds
        file.write_bytes(synced)
        return
    data = file.read_bytes()
    kept = rng.randint(0, len(data))
    tail = bytes(len(data) - kept) if what < 0.8 else b""  # noqa: PLR2004 - the odds; a hole reads as zeros
    file.write_bytes(data[:kept] + tail)


def _lose_commits(rng: random.Random, wal: Path) -> None:
    """Drop the last commits of a database that does not sync each: its log may end anywhere."""
    data = wal.read_bytes()
    if rng.random() < 0.5 and len(data) < _LARGE_WAL:  # noqa: PLR2004 - even odds
        wal.write_bytes(data[: rng.randint(0, len(data))])


def _is_database(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return False


def _undo(change: Name, there: Callable[[Path], Path]) -> None:
    path = there(change.path)
    match change.kind:
        case "create":
            path.unlink(missing_ok=True)
        case "mkdir":
            shutil.rmtree(path, ignore_errors=True)
        case "replace":
            if change.old is not None and path.exists() and there(change.old).parent.is_dir():
                path.replace(there(change.old))
            _put_back(path, change.content)
        case "unlink":
            _put_back(path, change.content)


def _put_back(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
