"""The model registry: versions of the global model as manifests of content-addressed blobs.

An unchanged blob keeps its digest, so a device fetches only what changed. All work here is idempotent: making
the same version again after a crash gives the same digests.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from coordinator.objects.blobs import BlobStorage
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.private_blobs import OWN_LIMITS
from coordinator.storage.run_id import RunId
from models.contract import Blobs, Evaluation, Tensors
from models.registry import methods
from protocol import messages
from protocol.errors import Reason, Refused
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec, encode
from protocol.messages import BlobRef
from protocol.tasks.task import Task


def blob_frame(name: str, tensors: Tensors, codecs: Mapping[str, Codec]) -> bytes:
    """Encode a blob.

    Args:
        name: of the blob.
        tensors: its content.
        codecs: by the last part of a tensor's name (``MethodSpec.codecs``); others are float32.
    """
    encoded = {
        tensor: encode(value, codecs.get(tensor.rsplit("/", 1)[-1], Codec.FLOAT32))
        for tensor, value in tensors.items()
    }
    return encode_frame(BlobHeader(name=name), encoded)


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

    def publish(self, version: int, state: Blobs, parent: str | None) -> tuple[str, Manifest]:
        """Store a global state.

        Returns:
            The manifest's digest and the manifest.
        """
        refs = {name: self._put(name, state[name]) for name in sorted(state)}
        manifest = Manifest(
            task=self._task.name,
            method=self._task.method,
            version=version,
            parent=parent or None,
            run=self._run.get() if self._run is not None and version == 0 else None,
            blobs=refs,
        )
        return self._blobs.put(messages.encode(manifest)).digest, manifest

    def _put(self, name: str, tensors: Tensors) -> BlobRef:
        return self._blobs.put(blob_frame(name, tensors, self._codecs))

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
        """Read a whole global state.

        Raises:
            KeyError: a blob is not here.
            Refused: a blob was damaged on disk.
        """
        blobs: Blobs = {}
        for name, ref in self.manifest(digest).blobs.items():
            _, blobs[name] = decode_frame(self._blobs.get(ref.digest), BlobHeader, OWN_LIMITS)
        return blobs

    def size(self, digest: str) -> int:
        """Bytes of a blob."""
        return self._blobs.size(digest)

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
                kept |= {ref.digest for ref in self.manifest(row["manifest"]).blobs.values()}
        return self._blobs.collect(kept)
