"""What a follower writes of a fleet: its task, versions with metrics, and the lineage of exported ones.

Read from the coordinator's tables alone, which the coordinator does not notice.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.round_machine.events import RoundPhase
from coordinator.round_machine.queries import replay
from coordinator.status.rollouts import list_rollouts
from coordinator.status.versions import BundleRow, VersionRow, list_versions, read_bundles
from coordinator.storage import run_id, schema
from coordinator.storage.database import Database
from coordinator.storage.model_registry import best_version
from protocol.errors import Transient
from protocol.tasks.task import Task

_PAGE: Final = 200
_NAMED: Final = 1000
"""Updates of a version that its lineage names; ``devices`` counts all."""
_STEPS: Final = 100
"""Versions of a chain that are named one by one, the newest ones."""


@dataclass(frozen=True)
class FleetRecord:
    """A fleet at one moment.

    Attributes:
        fleet: its name.
        run: the id of this training of it: another one if the state folder was removed.
        task: what it learns.
        versions: the oldest first; without those that the caller has already.
        manifests: of them, the digest of each one's manifest.
        done: the rounds have ended.
        best: the best version by the coordinator's evaluation; None: none is evaluated.
        stable: the version that all devices should have, after a rollout; None: none yet.
    """

    fleet: str
    run: str
    task: Task
    versions: tuple[VersionRow, ...]
    manifests: Mapping[int, str]
    done: bool
    best: int | None
    stable: int | None


@dataclass(frozen=True)
class VersionLineage:
    """The origin of an exported version.

    Attributes:
        version: its number.
        manifest: digest of its manifest; ``parent``: of the version before.
        parent_version: its number; None: it is not in the history.
        bundles: what devices can install.
        chain: the versions since the one that was exported before, as JSON values, the newest first: number,
            manifest, count of devices, and the digest of each device's update.
    """

    version: int
    manifest: str
    parent: str | None
    parent_version: int | None
    bundles: tuple[BundleRow, ...]
    chain: tuple[dict[str, Any], ...]

    def as_json(self) -> str:
        """For a file."""
        one = {"version": self.version, "manifest": self.manifest, "parent": self.parent}
        bundles = [row.model_dump(mode="json") for row in self.bundles]
        return json.dumps({**one, "bundles": bundles, "versions": self.chain}, indent=1)


def read_record(store: Database, settings: CoordinatorSettings, since: int) -> FleetRecord:
    """Read a fleet.

    Args:
        store: the tables, as of one moment.
        settings: of the coordinator.
        since: the oldest version to read.

    Raises:
        Transient: the coordinator has no task yet.
    """
    known = store.get_meta("task")
    if known is None:
        raise Transient(f"{store.where} has no task yet; has this coordinator ever run?")
    rows: list[VersionRow] = []
    while page := list_versions(store, len(rows), _PAGE):
        rows += page
        if page[-1].version < since:
            break
    table = schema.versions
    told = store.rows(sa.select(table.c.version, table.c.manifest).where(table.c.version >= since))
    best = best_version(store)
    state, _ = replay(store.journal())
    stable = list_rollouts(settings.location, settings.rollout.mode).stable
    return FleetRecord(
        fleet=settings.fleet,
        run=_run(store, settings),
        task=Task.model_validate_json(known),
        versions=tuple(row for row in reversed(rows) if row.version >= since),
        manifests={row["version"]: row["manifest"] for row in told},
        done=state.phase is RoundPhase.DONE,
        best=None if best is None else best.version,
        stable=None if stable is None else stable.version,
    )


def _run(store: Database, settings: CoordinatorSettings) -> str:
    shared = store.get_meta(run_id.FILE)
    if shared:
        return shared
    try:
        return (settings.state_dir / run_id.FILE).read_text("ascii", errors="replace")[:32]
    except OSError:
        return ""


def read_lineage(store: Database, version: int, after: int) -> VersionLineage | None:
    """The lineage of a version; None: the registry does not have it any more.

    Args:
        store: the tables, as of one moment.
        version: which.
        after: its chain ends before this version, which has a lineage of its own; -1: at the begin.
    """
    table, length = schema.versions, sa.func.json_array_length(schema.versions.c.devices).label("count")
    told = sa.select(table.c.version, table.c.manifest, table.c.parent, length)
    wanted = (table.c.version <= version) & (table.c.version > max(after, version - _STEPS))
    rows = store.rows(told.where(wanted).order_by(table.c.version.desc()))
    if not rows or rows[0]["version"] != version:
        return None
    older = store.rows(
        sa.select(table.c.version)
        .where((table.c.manifest == (rows[0]["parent"] or "")) & (table.c.version < version))
        .order_by(table.c.version.desc())
        .limit(1)
    )
    return VersionLineage(
        version=version,
        manifest=rows[0]["manifest"],
        parent=rows[0]["parent"],
        parent_version=older[0]["version"] if older else None,
        bundles=read_bundles(store, version),
        chain=tuple(
            {
                "version": row["version"],
                "manifest": row["manifest"],
                "parent": row["parent"],
                "devices": row["count"],
                "updates": _updates(store, row["version"]),
            }
            for row in rows
        ),
    )


def _updates(store: Database, version: int) -> dict[str, str]:
    """Device -> digest of its update, of those that count in a version."""
    table = schema.updates
    query = sa.select(table.c.device, table.c.digest).where((table.c.round == version) & (table.c.lost == ""))
    return {row["device"]: row["digest"] for row in store.rows(query.order_by(table.c.device).limit(_NAMED))}
