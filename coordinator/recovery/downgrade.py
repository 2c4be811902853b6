"""The way back to an older release: which files go back, and how.

The books of identities and rollouts are put back as they were. The coordinator's own database goes back by
way of :mod:`coordinator.recovery.rebuild`: its copy becomes the backup, and the next start adds to it what
the folder
proves besides, which are versions that were made since and accepted updates of the open round.
"""

from pathlib import Path
from typing import Final

from coordinator.recovery.folder_owner import DATABASE
from coordinator.rollout.store import ROLLOUTS
from coordinator.storage import schema
from coordinator.storage.backup import backup_of
from coordinator.storage.migrations import put_back
from coordinator.storage.shared_sqlite import IDENTITIES
from runtime.storage.folder_lock import FolderLock

_SINCE: Final = {
    DATABASE: "versions and the open round's updates since then are found again at the start; history is not",
    IDENTITIES.file: "revoke anew who was revoked since then, and invite anew who was invited",
    ROLLOUTS.file: "what was decided since then is forgotten; devices keep what they run until then",
}


def downgraded(state_dir: Path) -> list[str]:
    """Make a state folder usable for this release.

    Returns:
        What was put back, a line each; nothing where this release can use all of it.

    Raises:
        Misconfigured: a coordinator runs on it, or there is no copy to go back to.
        Transient: the disk is full, or another process has a file open; given again it goes on.
    """
    database = state_dir / DATABASE
    if not state_dir.is_dir():
        return []
    alone = FolderLock(database.with_suffix(".lock"), "coordinator")
    try:
        done = {DATABASE: put_back(database, schema.VERSION, backup_of(database))}
        for book in (IDENTITIES, ROLLOUTS):
            done[book.file] = put_back(state_dir / book.file, book.version)
    finally:
        alone.close()
    return [f"{words}; {_SINCE[name]}" for name, words in done.items() if words]
