"""The account of privacy of each version: part of its lineage, written with it."""

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage.database import Database
from models.privacy.accountant import releases_within
from models.privacy.central_account import CentralAccount
from models.privacy.shared_noise import shared_noise
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task


def account_of(task: Task, version: int, clip: float | None = None) -> CentralAccount | None:
    """The account after a version, each of which since 0 is one release; None: the task has no ``[privacy]``.

    Not on an event loop: sampling takes a second. ``clip``: of the next round; None: the task's.

    Raises:
        Misconfigured: the accountant's package is not installed.
    """
    privacy = task.privacy
    if privacy is None:
        return None
    adapted = (clip or privacy.clip) if privacy.adaptive_clip else None
    return CentralAccount.after(privacy, version, adapted, shared_noise(task))


def why_last(task: Task, version: int) -> str:
    """Why no version may follow this one, in words; empty: one may. As :func:`account_of`."""
    privacy = task.privacy
    if privacy is None or releases_within(privacy, version + 1, shared_noise(task)) > version:
        return ""
    return f"one more version would exceed privacy.max_epsilon = {privacy.max_epsilon:g}"


class AccountStore:
    """Reads and writes the accounts of one task."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def write(self, version: int, account: CentralAccount) -> None:
        """Write a version's account, within its transaction."""
        self._store.put(schema.privacy, version=version, account=account.as_json())

    def read(self, version: int) -> dict[str, Any] | None:
        """The account of a version as JSON values; None: it has none."""
        return accounts(self._store, [version]).get(version)

    def current(self, task: Task, version: int) -> Privacy | None:
        """The task's table with the clip of the round that starts from a version; None: it has none."""
        privacy = task.privacy
        if privacy is None or privacy.adaptive_clip is None:
            return privacy
        clip = (self.read(version) or {}).get("clip", privacy.clip)
        return privacy.model_copy(update={"clip": clip})


def accounts(store: Database, versions: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The accounts of some versions, as JSON values; none of a task without ``[privacy]``."""
    if not json.loads(store.get_meta("task") or "{}").get("privacy"):
        return {}  # tables of an earlier release, which only this reads, may lack the one of accounts
    table = schema.privacy
    rows = store.rows(sa.select(table).where(table.c.version.in_(list(versions))))
    return {row["version"]: row["account"] for row in rows}
