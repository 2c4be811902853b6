"""The model registry: versions of the global model as manifests of content-addressed blobs.

An unchanged blob keeps its digest, so a device fetches only what changed. All work here is idempotent: making
the same version again after a crash gives the same digests.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from coordinator.objects.blobs import BlobStorage
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.run_id import RunId
from coordinator.versions.best_version import BestVersion, best_of
from coordinator.versions.version_blobs import VersionBlobs
from models.contract import Blobs, Evaluation
from protocol.errors import Transient
from protocol.frames.headers import Manifest
from protocol.tasks.task import Task

DIFFERENCES_KEPT: Final = 16
"""Versions whose manifests and differences are kept, for devices that were away; those of which whole blobs
are kept are fewer."""


class ModelRegistry:
    """Versions of one task. As thread-safe as its store and blob store.

    Args:
        store: of the coordinator.
        blobs: beside it.
        task: the task of the versions.
        run: part of version 0's manifest; None: left out.
    """

    def __init__(self, store: Database, blobs: BlobStorage, task: Task, run: RunId | None = None) -> None:
        self._run = run
        self._store = store
        self._blobs = blobs
        self.versions = VersionBlobs(blobs, task)

    def publish(self, version: int, state: Blobs, parent: str | None) -> tuple[str, Manifest]:
        """Store a global state; as :meth:`VersionBlobs.publish`."""
        run = self._run.get() if self._run is not None and version == 0 else None
        return self.versions.publish(version, state, parent, run)

    def manifest(self, digest: str) -> Manifest:
        """Read a manifest; raises as :meth:`VersionBlobs.manifest`."""
        return self.versions.manifest(digest)

    def state(self, digest: str) -> Blobs:
        """A global state as devices hold it; raises as :meth:`VersionBlobs.state`."""
        return self.versions.state(digest)

    def exact_state(self, digest: str) -> Blobs:
        """A global state as the next version is folded on it; raises as :meth:`VersionBlobs.state`."""
        return self.versions.exact_state(digest)

    def size(self, digest: str) -> int:
        """Bytes of a blob.

        Raises:
            Transient: it is not here, or the store does not answer.
        """
        try:
            return self._blobs.size(digest)
        except KeyError:
            raise Transient(f"blob {digest} is not in the registry") from None

    def record(
        self,
        version: int,
        digest: str,
        parent: str | None,
        devices: Iterable[str],
        *,
        wall: float,
        traffic: tuple[int, int],
        metrics: Mapping[str, float],
    ) -> None:
        """Write a version's row; ``metrics``: those known already."""
        self._store.put(
            schema.versions,
            version=version,
            manifest=digest,
            parent=parent or None,
            wall=wall,
            devices=sorted(devices),
            metrics=dict(metrics),
            confusion=None,
            bytes_up=traffic[0],
            bytes_down=traffic[1],
            trouble="",
        )

    def record_evaluation(self, version: int, evaluation: Evaluation) -> None:
        """Write a version's metrics."""
        self._set(version, metrics=dict(evaluation.metrics), confusion=evaluation.confusion_KK)
        with self._store.transaction() as connection:
            table = schema.parts
            connection.execute(table.delete().where(table.c.version == version))
            connection.execute(table.insert().values(version=version, by=evaluation.by))

    def record_trouble(self, version: int, trouble: str) -> None:
        """Write why a version could not be evaluated or exported."""
        self._set(version, trouble=trouble[:1000])

    def _set(self, version: int, **values: Any) -> None:
        with self._store.transaction() as connection:
            table = schema.versions
            connection.execute(table.update().where(table.c.version == version).values(**values))

    def row(self, version: int) -> dict[str, Any] | None:
        """A version's row."""
        found = self._store.rows(sa.select(schema.versions).where(schema.versions.c.version == version))
        return found[0] if found else None

    def metrics(self, version: int) -> dict[str, float]:
        """The metrics of the newest evaluated version up to this one."""
        table = schema.versions
        query = (
            sa.select(table.c.metrics)
            .where(table.c.version <= version)
            .order_by(table.c.version.desc())
            .limit(50)
        )
        return next((row["metrics"] for row in self._store.rows(query) if row["metrics"]), {})

    def history(self, before: int) -> list[dict[str, float]]:
        """The metrics of the versions below this one that have any, the oldest first."""
        table = schema.versions
        query = sa.select(table.c.metrics).where(table.c.version < before).order_by(table.c.version)
        return [row["metrics"] for row in self._store.rows(query) if row["metrics"]]

    def best(self) -> BestVersion | None:
        """The best version by its evaluation; None: none is evaluated."""
        return best_version(self._store)

    def collect(self, newest: int, keep: int, also: Iterable[str] = ()) -> int:
        """Remove the blobs of all but the newest ``keep`` versions and the best one, and old differences.

        Args:
            newest: the newest version.
            keep: how many stay.
            also: further digests that stay (announced bundles).

        Returns:
            Bytes freed.
        """
        table = schema.versions
        oldest = newest - max(keep, DIFFERENCES_KEPT)
        best = self.best()
        wanted = (table.c.version > oldest) | (table.c.version == (newest if best is None else best.version))
        rows = self._store.rows(sa.select(table.c.manifest, table.c.version).where(wanted))
        kept = set(also)
        for row in rows:
            whole = row["version"] > newest - keep or (best is not None and row["version"] == best.version)
            if self._blobs.has(row["manifest"]):
                kept |= {row["manifest"]} | self.versions.digests(
                    self.manifest(row["manifest"]), newest, whole=whole
                )
        return self._blobs.collect(kept)


def best_version(store: Database) -> BestVersion | None:
    """The best version in the tables, by its evaluation; None: none is evaluated."""
    table = schema.versions
    rows = store.rows(sa.select(table.c.version, table.c.metrics))
    return best_of((row["version"], row["metrics"] or {}) for row in rows)
