"""Releases: from the tables of exports, and from a bundle's file."""

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from coordinator.config.rollout import Mode
from coordinator.fleet.routes import ReleaseBundle
from coordinator.fleet.serving_routes import served
from coordinator.rollout.model import Release, RolloutState
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.bundle import MAX_BUNDLE_BYTES, unpack
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import BlobRef
from protocol.tasks.task import Task
from runtime.storage.files import disk_errors, make_folder, remove, write_atomic

BEGUN = "rollouts"
"""The key of the table ``meta``: since when there is a store of rollouts, Unix seconds."""
_KEEP_BROUGHT_S: Final = 600.0
FOLDER = "rollout"
"""Below ``state_dir``: bundles that the operator brought, by digest."""


def exports(store: Database, most: int = 1000) -> list[Release]:
    """Bundles that all devices may run, the newest first."""
    table = schema.exports
    rows = store.rows(sa.select(table).order_by(table.c.version.desc()).limit(most))
    return [
        Release(
            version=row["version"],
            pieces=(
                ReleaseBundle(
                    version=row["version"],
                    bundle=BlobRef(digest=row["digest"], size=row["size"]),
                    metrics=row["metrics"],
                ),
            ),
        )
        for row in rows
    ]


def newest(store: Database) -> Release | None:
    """The last export; None before the first one."""
    if found := exports(store, 1):
        return found[0]
    pieces = served(store)
    return Release(version=max(one.version for one in pieces), pieces=pieces) if pieces else None


def announced(store: Database, mode: Mode = "manual") -> Release | None:
    """The pointer of all devices before there was a store of rollouts.

    If there was one, and it is lost, it is unknown: the newest export may be one that failed. In mode
    ``newest`` it is the newest export.
    """
    return None if store.get_meta(BEGUN) and mode != "newest" else newest(store)


def known(store: Database, course: RolloutState) -> list[Release]:
    """All exports that may still be here, the newest first, each once."""
    last = newest(store)
    found = [*([] if last is None else [last]), *exports(store), *course.named]
    unique = {release.key: release for release in found}
    return sorted(unique.values(), key=lambda release: -release.version)


def take(file: Path, state_dir: Path, task: Task) -> Release:
    """Read a bundle, and store it for the coordinator.

    Raises:
        Misconfigured: the file cannot be read.
        Refused: it is not a bundle, or one of another task.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BUNDLE_BYTES + 1)  # no more, however large it is
    except OSError as error:
        raise Misconfigured(f"--bundle {file}: {error.strerror}") from None
    try:
        manifest, _ = unpack(data)
    except Refused as error:
        raise Refused(error.reason, f"--bundle {file}: {error.detail}") from None
    if (manifest.task, manifest.method) != (task.name, task.method):
        raise Refused(
            Reason.UNKNOWN_TASK,
            f"--bundle {file}: of task {manifest.task!r} and method {manifest.method!r}; this fleet's are "
            f"{task.name!r} and {task.method!r}",
        )
    if manifest.labels != task.labels:
        raise Refused(Reason.UNKNOWN_TASK, f"--bundle {file}: its labels are not this task's")
    ref = BlobRef(digest=digest(data), size=len(data))
    folder = state_dir / FOLDER
    with disk_errors(folder):
        make_folder(folder)
        write_atomic(folder / ref.digest, data)
    piece = ReleaseBundle(version=manifest.version, bundle=ref, metrics=dict(manifest.metrics))
    return Release(version=manifest.version, pieces=(piece,))


def brought(state_dir: Path, digest_: str) -> bytes | None:
    """A bundle that the operator brought; None if it is missing or damaged."""
    file = state_dir / FOLDER / digest_
    data = file.read_bytes() if file.is_file() else b""
    return data if digest(data) == digest_ else None


def tidy(state_dir: Path, course: RolloutState, wall: float) -> None:
    """Remove brought bundles that no release needs.

    Args:
        state_dir: of the coordinator.
        course: the decisions.
        wall: Unix seconds; recent ones stay, because ``lichen rollout create`` may be about to name them.
    """
    folder, kept = state_dir / FOLDER, {name for one in course.named for name in one.digests}
    if folder.is_dir():
        for file in folder.iterdir():
            if file.name not in kept and wall - file.stat().st_mtime > _KEEP_BROUGHT_S:
                remove(file)
