"""The versions of a simulation as devices get them: the coordinator's registry in memory, and bytes down.

Versions are written by :class:`coordinator.storage.model_registry.ModelRegistry`, so devices train on the
values that those of a real fleet hold. A device's download is its manifest and, of each blob of its route
that it lacks, the way that an agent takes (:mod:`edge_agent.training.shorter_ways`): differences, a packed
whole blob or the blob itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.storage.model_registry import DIFFERENCES_KEPT
from coordinator.versions.version_blobs import VersionBlobs
from edge_agent.training.shorter_ways import worth_it
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs
from protocol.frames.frame import digest as digest_of
from protocol.frames.headers import BlobIndex, Manifest
from protocol.messages import BlobRef
from protocol.tasks.task import Task


class _Memory:
    """Blobs of the last versions, in memory; see :class:`coordinator.objects.blobs.BlobStorage`."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def put(self, data: bytes) -> BlobRef:
        """Keep a blob."""
        ref = BlobRef(digest=digest_of(data), size=len(data))
        self._data.setdefault(ref.digest, data)
        return ref

    def get(self, digest: str) -> bytes:
        """A blob; raises ``KeyError`` if it is gone."""
        return self._data[digest]

    def has(self, digest: str) -> bool:
        """Whether it is here."""
        return digest in self._data

    def size(self, digest: str) -> int:
        """Its bytes."""
        return len(self._data[digest])

    def read(self, digest: str, start: int, size: int) -> bytes:
        """A part of it."""
        return self._data[digest][start : start + size]

    def read_chunk(self, digest: str, index: int, chunk_bytes: int) -> bytes:
        """A part of it, by chunks."""
        return self.read(digest, index * chunk_bytes, chunk_bytes)

    def names(self) -> Iterable[str]:
        """All digests."""
        return self._data

    def collect(self, keep: Iterable[str]) -> int:
        """Drop the others."""
        kept, before = set(keep), sum(map(len, self._data.values()))
        self._data = {digest: data for digest, data in self._data.items() if digest in kept}
        return before - sum(map(len, self._data.values()))


@dataclass
class Versions:
    """Publishes versions and counts what devices fetch; a device keeps what it fetched.

    Attributes:
        task: the codec of the way down is its ``downlink``.
        kept: by device, digest of the newest blob of each name that it fetched.
    """

    task: Task
    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    _blobs: _Memory = field(default_factory=_Memory)
    _manifests: list[tuple[str, int, Manifest]] = field(default_factory=list)
    _packed: dict[str, BlobRef] = field(default_factory=dict)

    def publish(self, exact: Blobs) -> Blobs:
        """The next version's model as devices hold it.

        Args:
            exact: its values, with an optimizer's moments.
        """
        written = VersionBlobs(self._blobs, self.task)
        parent = self._manifests[-1][0] if self._manifests else None
        number = self._manifests[-1][2].version + 1 if self._manifests else 0
        digest, manifest = written.publish(number, exact, parent)
        self._manifests = [*self._manifests[-DIFFERENCES_KEPT:], (digest, self._blobs.size(digest), manifest)]
        index = manifest.packed
        listed = None if index is None else BlobIndex.model_validate_json(self._blobs.get(index.digest))
        self._packed = {} if listed is None else dict(listed.blobs)
        held = written.state(digest)
        self._blobs.collect({digest} | written.digests(manifest, number))
        return model_of(held)

    @property
    def lineage(self) -> tuple[str, str | None]:
        """Digests of the newest version's manifest and of the one before."""
        digest, _, manifest = self._manifests[-1]
        return digest, manifest.parent

    def of(self, device: str, route: Iterable[str], state: Blobs) -> int:
        """Bytes that a device fetches of the newest version for its route; it has them from now on."""
        del state  # it is the newest version
        kept, newest = self.kept.setdefault(device, {}), self._manifests[-1]
        total, asked_index, walked = newest[1], False, 1
        for name in route:
            ref, have = newest[2].blobs[name], kept.get(name)
            kept[name] = ref.digest
            if have == ref.digest:
                continue
            chain = self._chain(name, have)
            if chain is not None:
                cost, hops = chain
                total += cost + sum(size for _, size, _ in self._manifests[-hops:-walked])
                walked = max(walked, hops)
            elif name in self._packed and newest[2].packed is not None:
                total += self._packed[name].size + (0 if asked_index else newest[2].packed.size)
                asked_index = True
            else:
                total += ref.size
        return total

    def _chain(self, name: str, have: str | None) -> tuple[int, int] | None:
        """Bytes of the differences from a blob that a device has, and manifests read; None: no way."""
        cost, at = 0, self._manifests[-1][2].blobs[name]
        for hops, (_, _, manifest) in enumerate(reversed(self._manifests), start=1):
            ref, difference = manifest.blobs.get(name), manifest.differences.get(name)
            if ref is None or ref.digest != at.digest:
                return None
            if at.digest == have:
                return cost, hops
            if difference is not None:
                cost += difference.blob.size
                at = BlobRef(digest=difference.parent, size=at.size)
            if at.digest == have:
                return cost, hops
            if have is None or not worth_it(cost + (manifest.parent_size or 0) * hops, ref.size):
                return None
        return None
