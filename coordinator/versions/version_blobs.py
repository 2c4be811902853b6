"""Versions of the global model in a blob store: manifests of content-addressed blobs.

An unchanged blob keeps its digest, so a device fetches only what changed. All work here is idempotent: making
the same version again after a crash gives the same digests.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from coordinator.objects.blobs import BlobStorage
from coordinator.versions.published_blobs import OWN_LIMITS, blob_frame, published
from models.aggregation.update_norms import FINE
from models.contract import Blobs, Tensors
from models.registry import methods
from protocol import messages
from protocol.errors import Reason, Refused
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


class VersionBlobs:
    """Versions of one task. As thread-safe as its blob store.

    Args:
        blobs: where they are.
        task: the task of the versions.
    """

    def __init__(self, blobs: BlobStorage, task: Task) -> None:
        self._blobs = blobs
        self._task = task
        spec = methods().get(task.method)
        self._codecs = {} if spec is None else spec.codecs
        self._rounded = () if spec is None or task.downlink.codec == "float32" else spec.rounded
        self._fine = () if spec is None else spec.fine

    def publish(
        self, version: int, state: Blobs, parent: str | None, run: str | None = None
    ) -> tuple[str, Manifest]:
        """Store a global state.

        Devices hold its values rounded (``task.downlink``), and the next fold starts from the exact ones
        (:meth:`exact_state`). One manifest names both, so they are committed together.

        Args:
            version: its number.
            state: the exact values.
            parent: digest of the manifest of the version before; None or empty: there is none.
            run: id of the training run, for version 0.

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
            run=run,
            parent_size=self._blobs.size(parent) if parent and self._rounded else None,
            blobs=made.blobs,
            differences=made.differences,
            packed=self._index(made.packed),
            exact=self._index(made.exact),
        )
        return self._blobs.put(messages.encode(manifest)).digest, manifest

    def _write(self, made: _Version, name: str, tensors: Tensors, before: _Version) -> None:
        """Store one blob, and the shorter ways to it."""
        exact = blob_frame(name, tensors, self._codecs)
        part = name.split("/", 1)[0]
        if part not in self._rounded:
            made.blobs[name] = self._blobs.put(exact)
            return
        old = before.blobs.get(name)
        if old is not None and digest_of(exact) == before.exact.get(name, old).digest:
            made.blobs[name] = old  # no device moved it: its rounding error alone is no news
            for refs, source in ((made.packed, before.packed), (made.exact, before.exact)):
                if name in source:
                    refs[name] = source[name]
            return
        parent = None if old is None else self._blobs.get(old.digest)
        coarseness = self._task.downlink.coarseness * (FINE if part in self._fine else 1)
        blob = published(name, tensors, parent, self._codecs, coarseness)
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

    def digests(self, manifest: Manifest, newest: int, *, whole: bool = True) -> set[str]:
        """Digests of a version's blobs, without the exact values of versions that no fold starts from.

        Args:
            manifest: of the version.
            newest: number of the newest version.
            whole: False: only its differences.
        """
        kept = {difference.blob.digest for difference in manifest.differences.values()}
        if not whole:
            return kept
        kept |= {ref.digest for ref in manifest.blobs.values()}
        recent = manifest.exact if manifest.version >= newest - 1 else None
        for index in (manifest.packed, recent):
            if index is not None:
                kept |= {index.digest, *(ref.digest for ref in self._listed(index).values())}
        return kept
