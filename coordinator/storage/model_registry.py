"""The model registry: versions of the global model as manifests of content-addressed blobs.

An unchanged blob keeps its digest, so a device fetches only what changed. All work here is idempotent: making
the same version again after a crash gives the same digests.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
import structlog

from coordinator.objects.blobs import BlobStorage
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.run_id import RunId
from coordinator.versions.published_blobs import OWN_LIMITS, blob_frame, published
from models.contract import Blobs, Evaluation, Tensors
from models.registry import methods
from protocol import messages
from protocol.errors import Reason, Refused, Transient
from protocol.frames.differences import packed_whole
from protocol.frames.frame import decode_frame
from protocol.frames.frame import digest as digest_of
from protocol.frames.headers import BlobHeader, BlobIndex, Difference, Manifest
from protocol.messages import BlobRef
from protocol.tasks.task import Task

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Version:
    """What a version consists of, while it is written."""

    blobs: dict[str, BlobRef] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)
    packed: dict[str, BlobRef] = field(default_factory=dict)
    exact: dict[str, BlobRef] = field(default_factory=dict)


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
        self._task = task
        spec = methods().get(task.method)
        self._codecs = {} if spec is None else spec.codecs
        self._rounded = () if spec is None or task.downlink.codec == "float32" else spec.rounded

    def publish(self, version: int, state: Blobs, parent: str | None) -> tuple[str, Manifest]:
        """Store a global state.

        Devices hold its values rounded (``task.downlink``), and the next fold starts from the exact ones
        (:meth:`exact_state`). One manifest names both, so they are committed together.

        Args:
            version: its number.
            state: the exact values.
            parent: digest of the manifest of the version before; None or empty: there is none.

        Returns:
            The manifest's digest and the manifest.
        """
        before = self._before(parent)
        made = _Version()
        for name in sorted(state):
            self._write(made, name, state[name], before)
        manifest = Manifest(
            task=self._task.name,
            method=self._task.method,
            version=version,
            parent=parent or None,
            run=self._run.get() if self._run is not None and version == 0 else None,
            parent_size=self.size(parent) if parent and self._rounded else None,
            blobs=made.blobs,
            differences=made.differences,
            packed=self._index(made.packed),
            exact=self._index(made.exact),
        )
        return self._blobs.put(messages.encode(manifest)).digest, manifest

    def _write(self, made: _Version, name: str, tensors: Tensors, before: _Version) -> None:
        """Store one blob, and the shorter ways to it."""
        exact = blob_frame(name, tensors, self._codecs)
        if name.split("/", 1)[0] not in self._rounded:
            made.blobs[name] = self._blobs.put(exact)
            return
        old = before.blobs.get(name)
        if old is not None and digest_of(exact) == before.exact.get(name, old).digest:
            made.blobs[name] = old  # no device moved it: its rounding error alone is no news
            for part, source in ((made.packed, before.packed), (made.exact, before.exact)):
                if name in source:
                    part[name] = source[name]
            return
        parent = None if old is None else self._blobs.get(old.digest)
        blob = published(name, tensors, parent, self._codecs, self._task.downlink)
        made.blobs[name] = self._blobs.put(blob.frame)
        whole = packed_whole(blob.frame, OWN_LIMITS)
        if len(whole) < len(blob.frame):
            made.packed[name] = self._blobs.put(whole)
        if blob.difference is not None and old is not None and len(blob.difference) < len(whole):
            made.differences[name] = Difference(parent=old.digest, blob=self._blobs.put(blob.difference))
        if blob.frame != exact:
            made.exact[name] = self._blobs.put(exact)

    def _before(self, parent: str | None) -> _Version:
        """What the version before consists of; nothing without one."""
        if not parent or not self._rounded:
            return _Version()
        manifest = self.manifest(parent)
        packed, exact = self._listed(manifest.packed), self._listed(manifest.exact)
        return _Version(dict(manifest.blobs), dict(manifest.differences), packed, exact)

    def _listed(self, index: BlobRef | None) -> dict[str, BlobRef]:
        """The blobs of an index; none if it is lost or damaged."""
        try:
            found = self._blobs.get(index.digest) if index is not None else None
            return {} if found is None else dict(BlobIndex.model_validate_json(found).blobs)
        except (KeyError, ValueError, Refused) as error:
            log.warning("index_lost", index=index and index.digest, why=str(error))
            return {}

    def _index(self, blobs: dict[str, BlobRef]) -> BlobRef | None:
        return self._blobs.put(messages.encode(BlobIndex(blobs=blobs))) if blobs else None

    def manifest(self, digest: str) -> Manifest:
        """Read a manifest.

        Raises:
            KeyError: it is not here.
            Refused: it was damaged on disk.
        """
        try:
            return Manifest.model_validate(json.loads(self._blobs.get(digest)))
        except ValueError as error:
            raise Refused(Reason.MALFORMED, f"blob {digest} is no manifest: {error}") from None

    def state(self, digest: str) -> Blobs:
        """Read a whole global state, as devices hold it.

        Raises:
            KeyError: a blob is not here.
            Refused: a blob was damaged on disk.
        """
        return self._read(self.manifest(digest).blobs)

    def exact_state(self, digest: str) -> Blobs:
        """Read a whole global state, as the next version is folded on it.

        Exact values that are lost or damaged are those that devices hold: their rounding error is lost.

        Raises:
            KeyError, Refused: as :meth:`state`.
        """
        manifest = self.manifest(digest)
        exact = self._listed(manifest.exact)
        sound = {name: ref for name, ref in exact.items() if self._is_sound(ref)}
        for name in sorted(exact.keys() - sound.keys()):
            log.warning("exact_values_lost", version=manifest.version, blob=name)
        return self._read({**manifest.blobs, **sound})

    def _is_sound(self, ref: BlobRef) -> bool:
        try:
            self._blobs.get(ref.digest)
        except (KeyError, Refused):
            return False
        return True

    def _read(self, refs: Mapping[str, BlobRef]) -> Blobs:
        blobs: Blobs = {}
        for name, ref in refs.items():
            _, blobs[name] = decode_frame(self._blobs.get(ref.digest), BlobHeader, OWN_LIMITS)
        return blobs

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

    def collect(self, newest: int, keep: int, also: Iterable[str] = ()) -> int:
        """Remove the blobs of all but the newest ``keep`` versions.

        Args:
            newest: the newest version.
            keep: how many stay.
            also: further digests that stay (announced bundles).

        Returns:
            Bytes freed.
        """
        table = schema.versions
        rows = self._store.rows(sa.select(table.c.manifest).where(table.c.version > newest - keep))
        kept = {row["manifest"] for row in rows} | set(also)
        for row in rows:
            if self._blobs.has(row["manifest"]):
                kept |= self._digests(self.manifest(row["manifest"]), newest)
        return self._blobs.collect(kept)

    def _digests(self, manifest: Manifest, newest: int) -> set[str]:
        """Digests of a version's blobs. The exact values of old versions are not among them."""
        kept = {ref.digest for ref in manifest.blobs.values()}
        kept |= {difference.blob.digest for difference in manifest.differences.values()}
        recent = manifest.exact if manifest.version >= newest - 1 else None
        for index in (manifest.packed, recent):
            if index is not None:
                kept |= {index.digest, *(ref.digest for ref in self._listed(index).values())}
        return kept
