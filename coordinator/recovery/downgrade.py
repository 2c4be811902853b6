"""Downgrade: the way back to an older release.

The databases of identities and rollouts are restored from their copies. The coordinator's own database goes
back through :mod:`coordinator.recovery.rebuild`: its copy becomes the backup, and the next start adds what
other files prove: versions that were made since, and accepted updates of the open round.
"""

from pathlib import Path
from typing import Final

from coordinator.audit.tables import OPERATORS
from coordinator.recovery.rebuild import DUE
from coordinator.rollout.store import ROLLOUTS
from coordinator.storage import schema
from coordinator.storage.backup import backup_of
from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from coordinator.storage.location import DATABASE, Location
from coordinator.storage.migrations import put_back
from runtime.storage.folder_lock import FolderLock

_SINCE: Final = {
    DATABASE: "the start recovers versions and the open round's updates since then, not the history",
    IDENTITIES.file: "repeat the revocations and invites made since then",
    OPERATORS.file: "actions since then are not in the audit log",
    ROLLOUTS.file: "decisions since then are lost; devices keep what they run until then",
}


def downgraded(where: Location | Path) -> list[str]:
    """Make a coordinator's tables usable for this release.

    Returns:
        What was restored, a line each; empty if this release can use everything.

    Raises:
        Misconfigured: a coordinator runs on it, or there is no copy to go back to.
        Transient: the disk is full, or another process has a file open; a repeated call continues.
    """
    location = Location.at(where)
    if location.schema is not None:
        return _put_back_schemas(location.schema)
    state_dir = location.state_dir
    database = state_dir / DATABASE
    if not state_dir.is_dir():
        return []
    alone = FolderLock(database.with_suffix(".lock"), "coordinator")
    try:
        done = {DATABASE: put_back(database, schema.VERSION, backup_of(database))}
        for book in (IDENTITIES, ROLLOUTS, OPERATORS):
            done[book.file] = put_back(state_dir / book.file, book.version)
    finally:
        alone.close()
    return [f"{words}; {_SINCE[name]}" for name, words in done.items() if words]


def _put_back_schemas(main: PostgresSchema) -> list[str]:
    # Only where it is configured.
    from coordinator.storage.engines import postgres_downgrade  # noqa: PLC0415

    done = {DATABASE: postgres_downgrade.put_back(main, "", schema.VERSION, DUE)}
    for book in (IDENTITIES, ROLLOUTS, OPERATORS):
        done[book.file] = postgres_downgrade.put_back(main, book.suffix, book.version)
    return [f"{words}; {_SINCE[name]}" for name, words in done.items() if words]
