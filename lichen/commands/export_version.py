"""A version of a coordinator, by its number: from the settings, the database and the blobs beside it."""

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from coordinator.config.coordinator import load_settings
from coordinator.objects.blobs import key_of
from coordinator.objects.contract import ObjectStore
from coordinator.recovery.open_stores import has_blob, open_bucket
from coordinator.storage import schema
from coordinator.storage.model_registry import best_version
from coordinator.versions.best_version import BestVersion
from export.cli import ExportChoice, read_manifest
from models.backbones.views import backbones
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

BEST: Final = "best"


def version_of(
    config: Path,
    chosen: str | None,
    scratch: Path,
    further_task: str | None = None,
    *,
    with_backbones: bool = False,
) -> ExportChoice:
    """The version, its task and the folder of its blobs; the coordinator may run.

    Args:
        config: coordinator.toml.
        chosen: number of the version, or ``best``: by the coordinator's evaluation; None: the newest.
        scratch: an empty folder, for the blobs of a coordinator that has them in a bucket.
        further_task: of the fleet; None: its main task.
        with_backbones: also the files of the task's backbones.

    Raises:
        Misconfigured: there is no such task, the coordinator never ran, has no such version, or has removed
            it; the message names the available ones.
        Transient: the bucket does not answer.
    """
    settings = load_settings(config).for_task(further_task)
    location, blobs = settings.location, settings.state_dir / "blobs"
    if not location.exists():
        raise Misconfigured(
            f"{config}: state_dir: {location.where} is not there; has this coordinator ever run?"
        )
    with location.database(read_only=True) as store:
        task_json = store.get_meta("task")
        rows = store.rows(sa.select(schema.versions.c.version, schema.versions.c.manifest))
        best = best_version(store)
    digests = {row["version"]: row["manifest"] for row in rows}
    if task_json is None or not digests:
        raise Misconfigured(f"{config}: {location.where} has no version yet")
    has = has_blob(settings)
    oldest = max(digests) - settings.keep_versions  # of that one and those before only differences are kept
    kept = {best.version} if best is not None else set()
    available = sorted(
        one for one, digest in digests.items() if (one > oldest or one in kept) and has(digest)
    )
    version = _number(config, chosen, max(digests), best)
    names = ", ".join(map(str, available)) or "none"
    if version not in digests:
        raise Misconfigured(f"--version {version}: the coordinator of {config} never made it (here: {names})")
    if version not in available:
        raise Misconfigured(
            f"--version {version} is gone: the coordinator of {config} keeps the newest "
            f"{settings.keep_versions} (keep_versions); here: {names}"
        )
    bucket = open_bucket(settings.storage)
    if bucket is not None:
        blobs = scratch
        _bring(bucket, digests[version], blobs)
    manifest, base = read_manifest(_path(blobs, digests[version]))
    if bucket is not None:
        for ref in manifest.blobs.values():
            _bring(bucket, ref.digest, blobs)
    task = Task.model_validate_json(task_json)
    wanted = {name: one.sha256 or "" for name, one in backbones(task).items()} if with_backbones else {}
    if bucket is not None:
        for digest in wanted.values():
            _bring(bucket, digest, blobs)
    files = {name: _path(blobs, digest) for name, digest in wanted.items()}
    return ExportChoice(task, manifest, base, blobs, settings.packages.allow, files)


def _number(config: Path, chosen: str | None, newest: int, best: BestVersion | None) -> int:
    if chosen is None:
        return newest
    if chosen == BEST:
        if best is None:
            raise Misconfigured(
                f"--version {BEST}: the coordinator of {config} has evaluated no version; [evaluation] "
                "data in its settings names windows for that"
            )
        return best.version
    if not chosen.isdecimal():
        raise Misconfigured(f"--version {chosen!r}: a number, or {BEST}")
    return int(chosen)


def _bring(bucket: ObjectStore, digest: str, folder: Path) -> None:
    """Copy a blob into a folder; the export verifies it."""
    path = _path(folder, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.writelines(bucket.stream(key_of(digest)))
    except KeyError:
        raise Misconfigured(f"storage.blobs: the bucket lacks the blob {digest}") from None


def _path(blobs: Path, digest: str) -> Path:
    """Path of a blob; read directly, because a blob store cleans up when it opens."""
    return blobs / digest[:2] / digest
