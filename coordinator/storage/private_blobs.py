"""What belongs to one device alone: blobs ``<part>/<device>`` of a version (``MethodSpec.owned``).

Each is served to its device and to nobody else, and no job gets it: what is exported, judged or looked at is
the rest. Whose a blob is stands in its own header, so a restart, a salvage or an old version changes nothing.
"""

from typing import Final

from models.contract import Blobs
from models.registry import methods
from protocol.errors import Refused
from protocol.frames.frame import Limits, is_frame, open_frame
from protocol.frames.headers import BlobHeader
from protocol.messages import MAX_BLOB_BYTES
from protocol.tasks.task import Task
from runtime.storage.blob_store import BlobStore

OWN_LIMITS: Final = Limits(
    max_bytes=MAX_BLOB_BYTES, max_elements=MAX_BLOB_BYTES // 4, max_total_elements=MAX_BLOB_BYTES // 4
)
"""Of frames that this coordinator wrote itself."""
_NOBODY: Final = ""
_MOST: Final = 20_000
"""Blobs whose owner is remembered."""


def private_parts(task: Task) -> tuple[str, ...]:
    """First words of the names of such blobs; of most methods none."""
    spec = methods().get(task.method)
    return () if spec is None else spec.owned


def owner_of(blob: str, parts: tuple[str, ...]) -> str:
    """The device that a blob of that name belongs to; empty: nobody alone."""
    part, _, device = blob.partition("/")
    return device if part in parts else _NOBODY


def without_private_blobs(task: Task, state: Blobs) -> Blobs:
    """A state without what belongs to single devices; the blobs are the same objects."""
    parts = private_parts(task)
    return {name: tensors for name, tensors in state.items() if not owner_of(name, parts)}


class BlobOwnership:
    """Says who may have a blob. Thread-safe; a blob is read once, and not at all where nothing is owned."""

    def __init__(self, task: Task, blobs: BlobStore) -> None:
        self._parts = private_parts(task)
        self._blobs = blobs
        self._known: dict[str, str] = {}

    def may_have(self, device: str, digest: str) -> bool:
        """Whether a device may be served a blob. What cannot be read is nobody's to have."""
        if not self._parts:
            return True
        owner = self._known.get(digest)
        if owner is None:
            try:
                owner = self._read(digest)
            except (KeyError, Refused, OSError):
                return False
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[digest] = owner
        return owner in {_NOBODY, device}

    def _read(self, digest: str) -> str:
        """Manifests and bundles are no frames, and for all."""
        with self._blobs.path(digest).open("rb") as file:
            if not is_frame(file.read(3)):
                return _NOBODY
        header, _ = open_frame(self._blobs.get(digest), BlobHeader, OWN_LIMITS)
        return owner_of(header.name, self._parts)
