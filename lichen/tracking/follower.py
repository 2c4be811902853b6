"""Copies what is new in a coordinator's tables into a store: once, or again and again."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from console.tables.connection import TablesConnection
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.objects.blobs import key_of
from coordinator.objects.folder import FolderObjects
from coordinator.recovery.open_stores import open_bucket
from coordinator.status.versions import BundleRow, VersionRow
from coordinator.storage.database import Database
from lichen.tracking.entries import lineage_tags, missing_metrics
from lichen.tracking.fleet_record import FleetRecord, VersionLineage, read_lineage, read_record
from lichen.tracking.mlflow_store import MlflowStore
from protocol.errors import Transient
from protocol.frames.frame import digest as digest_of

log = structlog.get_logger(__name__)
_OPEN: Final = 16
"""So many of the newest versions are read again: evaluation and export come after the version."""
_LONGEST_S: Final = 300.0
"""The longest pause after errors."""


@dataclass(frozen=True)
class CopiedEntries:
    """What a look added. ``values``: of metrics; ``registered``: versions; ``newest``: of the fleet."""

    values: int = 0
    registered: int = 0
    aliases: int = 0
    newest: int | None = None


class Follower:
    """Reads one coordinator's tables and writes to one store.

    Args:
        settings: of the coordinator.
        store: not yet open.
        bundles: also write the bundles of versions, not only what is known about them.
    """

    def __init__(self, settings: CoordinatorSettings, store: MlflowStore, *, bundles: bool = True) -> None:
        self._settings = settings
        self._store = store
        self._bundles = bundles
        self._tables = TablesConnection.of_task(settings)
        self._mark: object = None
        self._since = 0
        self._exported: dict[int, str] = {}

    def close(self) -> None:
        """Close the tables."""
        self._tables.close()

    def copy(self) -> CopiedEntries | None:
        """Write what is new; None: nothing was written to the tables since the last time.

        Raises:
            Misconfigured: the tables or the store cannot be used as they are.
            Transient: one of them cannot be reached now. What was written stays; the next call goes on.
        """
        mark = self._tables.read(self._tables.mark)
        if mark == self._mark:
            return None
        record = self._tables.read(lambda store: read_record(store, self._settings, self._since))
        began = round(1000 * record.versions[0].wall) if record.versions else None
        if began is None:
            return CopiedEntries()
        self._store.open(record.run or record.fleet, record.task, record.fleet, began)
        missing = missing_metrics(record.versions, self._store.steps)
        self._store.log(missing)
        before = len(self._store.registered)
        self._register(record)
        newest = record.versions[-1]
        aliases = [
            ("newest", max(self._exported, default=None)),
            ("best", record.best),
            ("stable", record.stable),
        ]
        named = sum(
            self._store.name(alias, self._exported[version])
            for alias, version in aliases
            if version is not None and version in self._exported
        )
        self._store.ends(done=record.done, wall_ms=round(1000 * newest.wall))
        self._mark, self._since = mark, max(0, newest.version - _OPEN)
        return CopiedEntries(len(missing), len(self._store.registered) - before, named, newest.version)

    async def run(self, every_s: float) -> None:
        """Copy for ever; what cannot be reached is tried again, ever more seldom.

        Raises:
            Misconfigured: as :meth:`copy`.
        """
        pause = every_s
        while True:
            try:
                copied = await asyncio.to_thread(self.copy)
            except Transient as error:
                pause = min(_LONGEST_S, 2 * pause)
                log.warning("mlflow_not_written", why=str(error), again_s=pause)
            else:
                pause = every_s
                if copied is not None and (copied.values or copied.registered or copied.aliases):
                    log.info(
                        "mlflow_written",
                        values=copied.values,
                        versions=copied.registered,
                        newest=copied.newest,
                    )
            await asyncio.sleep(pause)

    def _register(self, record: FleetRecord) -> None:
        """Register the exported versions that the store lacks."""
        for row in (one for one in record.versions if one.bundles):
            manifest = record.manifests[row.version]
            if manifest not in self._store.registered:
                after = max((one for one in self._exported if one < row.version), default=-1)
                lineage = self._lineage(row.version, after)
                if lineage is None:
                    continue
                self._write(lineage, row)
            self._exported[row.version] = manifest

    def _lineage(self, version: int, after: int) -> VersionLineage | None:
        def read(store: Database) -> VersionLineage | None:
            return read_lineage(store, version, after)

        return self._tables.read(read)

    def _write(self, lineage: VersionLineage, row: VersionRow) -> None:
        with tempfile.TemporaryDirectory(prefix="lichen-bundles-") as scratch:
            files = [file for one in lineage.bundles if (file := self._bring(one, row, Path(scratch)))]
            texts = {"lineage.json": lineage.as_json()}
            self._store.register(lineage.version, lineage.manifest, lineage_tags(lineage, row), texts, files)

    def _bring(self, one: BundleRow, row: VersionRow, folder: Path) -> Path | None:
        """A bundle as a file; None: it is not wanted, or not stored any more."""
        if not self._bundles:
            return None
        objects = open_bucket(self._settings.storage) or FolderObjects(self._settings.state_dir)
        try:
            data = b"".join(objects.stream(key_of(one.digest)))
        except KeyError:
            return None
        if digest_of(data) != one.digest:
            raise Transient(
                f"the bundle {one.digest[:12]} of version {row.version} is damaged where it is stored"
            )
        file = folder / f"{self._settings.fleet}-version-{row.version}-{one.digest[:12]}.bundle"
        file.write_bytes(data)
        return file
