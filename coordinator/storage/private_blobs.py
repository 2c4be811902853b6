"""Blobs of one device: ``<part>/<device>`` of a version (``MethodSpec.owned``).

Each is served to its device alone, and no job gets it: export, evaluation and views use the rest. A blob's
owner is in its own header, so it survives restarts, recovery and old versions.
"""

from typing import Final

from coordinator.objects.blobs import BlobStorage
from coordinator.versions.published_blobs import OWN_LIMITS
from models.contract import Blobs
from models.registry import methods
from protocol.errors import LichenError
from protocol.frames.frame import is_frame, open_frame
from protocol.frames.headers import BlobHeader
from protocol.tasks.task import Task

_NO_OWNER: Final = ""
_MAX_REMEMBERED: Final = 20_000
"""Blobs whose owner is cached."""


def private_parts(task: Task) -> tuple[str, ...]:
    """First parts of the names of such blobs; empty for most methods."""
    spec = methods().get(task.method)
    return () if spec is None else spec.owned


def owner_of(blob: str, parts: tuple[str, ...]) -> str:
    """The device that owns a blob of that name; empty: none."""
    part, _, device = blob.partition("/")
    return device if part in parts else _NO_OWNER


def without_private_blobs(task: Task, state: Blobs) -> Blobs:
    """A state without blobs of single devices; the other blobs are the same objects."""
    parts = private_parts(task)
    return {name: tensors for name, tensors in state.items() if not owner_of(name, parts)}


class BlobOwnership:
    """Decides which device may fetch a blob. Thread-safe; reads a blob once, and never if none is private."""

    def __init__(self, task: Task, blobs: BlobStorage) -> None:
        self._parts = private_parts(task)
        self._blobs = blobs
        self._known: dict[str, str] = {}

    def may_fetch(self, device: str, digest: str) -> bool:
        """Whether a device may be served a blob; never if the blob cannot be read."""
        if not self._parts:
            return True
        owner = self._known.get(digest)
        if owner is None:
            try:
                owner = self._read(digest)
            except (KeyError, LichenError, OSError):
                return False
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[digest] = owner
        return owner in {_NO_OWNER, device}

    def _read(self, digest: str) -> str:
        """Manifests and bundles are not frames, and public."""
        if not is_frame(self._blobs.read(digest, 0, 3)):
            return _NO_OWNER
        header, _ = open_frame(self._blobs.get(digest), BlobHeader, OWN_LIMITS)
        return owner_of(header.name, self._parts)
