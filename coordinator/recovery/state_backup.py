"""Copy a coordinator's whole state folder while it runs: ``lichen coordinator backup FOLDER``.

The copy is a state folder: restore it by putting it in the place of the old one. Each database is copied as
of one moment and checked. Files are copied before and after the databases, so that every file that a database
names is there.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.audit.log import HEAD
from coordinator.audit.tables import OPERATORS
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.tasks import FOLDER as TASKS
from coordinator.recovery.table_copy import copy_to_files
from coordinator.rollout.store import ROLLOUTS
from coordinator.storage.backup import back_up, copy_checked
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from coordinator.storage.location import DATABASE, Location
from protocol.errors import Misconfigured
from runtime.storage.files import disk_errors

DATABASES: Final = (DATABASE, IDENTITIES.file, ROLLOUTS.file, OPERATORS.file)
_NOT_COPIED: Final = frozenset({"cache", "jobs", "uploads", "mosquitto", "lost+found", TASKS})
"""Folders of temporary work; the broker's files, which the coordinator writes at its start; and that of
further tasks, each of which is a state folder."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied."""

    folder: Path
    files: int
    size: int
    """In bytes."""


def back_up_databases(state_dir: Path) -> None:
    """Copy each database beside itself; called at the end of each round.

    Raises:
        Transient: the disk is full, or a database is damaged (its old copy stays).
        Misconfigured: the folder is not writable.
    """
    for name in DATABASES:
        if (state_dir / name).is_file():
            back_up(state_dir / name)


def copy_state(where: Location | Path, to: Path) -> Copied:
    """Copy a state folder; tables on PostgreSQL become SQLite files of the copy.

    Args:
        where: of a coordinator, which may be running; a folder stands for the SQLite files in it.
        to: an empty folder, or one that does not exist yet.

    Raises:
        Transient: the disk is full, or a database is damaged.
        Misconfigured: there is nothing to copy, or ``to`` is not empty, inside of it, or denies access.
    """
    location = Location.at(where)
    state_dir = location.state_dir
    if not location.exists():
        raise Misconfigured(f"{location.where} is not there; has this coordinator ever run?")
    if to.resolve().is_relative_to(state_dir.resolve()):
        raise Misconfigured(f"{to}: is inside of {state_dir}; name a folder outside, better on another disk")
    with disk_errors(to):
        to.mkdir(mode=0o700, exist_ok=True)
        if any(to.iterdir()):
            raise Misconfigured(f"{to}: is not empty; a backup is made in a folder of its own")
        to.chmod(0o700)
        _copy_files(state_dir, to)
        if location.schema is not None:
            copy_to_files(location, to)
        for name in () if location.schema else DATABASES:
            if (state_dir / name).is_file():
                copy_checked(state_dir / name, to / name)
        # Not the head of the audit log: it would name rows that came after the copy of the log.
        _copy_files(state_dir, to, but=HEAD)
        os.sync()
        found = [path.stat().st_size for path in to.rglob("*") if path.is_file()]
    return Copied(to, len(found), sum(found))


def fleet_locations(settings: CoordinatorSettings) -> list[Location]:
    """The places of all tasks, the main one first; also of those that are no longer in the file."""
    found = [settings.location, *(settings.for_task(name).location for name in settings.task_names())]
    known = {one.state_dir for one in found}
    folders = sorted((settings.state_dir / TASKS).glob("*/"))
    return [*found, *(Location(folder) for folder in folders if folder not in known)]


def copy_fleet(settings: CoordinatorSettings, to: Path) -> Copied:
    """Copy the state folders of all tasks; arguments and errors as of :func:`copy_state`.

    Each task's copy is below ``to`` where its folder is below ``state_dir``.
    """
    main, *others = fleet_locations(settings)
    made = copy_state(main, to)
    for one in others:
        if one.exists():
            target = to / one.state_dir.relative_to(settings.state_dir)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            more = copy_state(one, target)
            made = Copied(to, made.files + more.files, made.size + more.size)
    return made


def _copy_files(state_dir: Path, to: Path, but: str = "") -> None:
    """Copy all files but databases and temporary ones; files that disappear meanwhile are not needed."""
    for path in _files(state_dir):
        if path.name == but:
            continue
        target = to / path.relative_to(state_dir)
        with contextlib.suppress(FileNotFoundError):
            if not target.exists() or target.stat().st_mtime_ns != path.stat().st_mtime_ns:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copy2(path, target)


def _files(state_dir: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(state_dir):
        here = Path(folder)
        if here == state_dir:
            folders[:] = [name for name in folders if name not in _NOT_COPIED]
            names = [name for name in names if not name.startswith(DATABASES)]  # noqa: PLW2901 - fewer of them
        for name in names:
            if not name.startswith(".tmp-") and not name.endswith((".lock", ".part")):
                yield here / name
