"""Chunks of uploads as objects: any process may take any chunk, and whoever sees the last one has the whole.

    uploads/<round>/<device>/<digest>/pointer     the announcement
    uploads/<round>/<device>/<digest>/<index>     a chunk

A chunk put twice is the same object. No process holds an upload: what is missing follows from a listing.
Each device has a folder of its own, so none can damage another's upload. Nothing is synced: the digest of the
whole decides.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from pydantic import ValidationError

from coordinator.objects.contract import FoundObject, ObjectStore
from protocol.errors import Reason, Refused
from protocol.frames.chunks import Assembly
from protocol.messages import BlobPointer

PREFIX: Final = "uploads"
_POINTER: Final = "pointer"
_NEAR_END: Final = 16
"""Chunks; at least what a device has in flight, so that the last to be stored is among these."""
_LOOK_S: Final = 1.0
"""A chunk that comes later was asked for again, so it may be the last one."""


class ChunkStore:
    """Chunks of uploads. Synchronous and thread-safe; every method raises as :class:`ObjectStore`.

    Args:
        objects: of this machine, or shared by several.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def announce(self, device: str, pointer: BlobPointer) -> None:
        """Let every process know what is uploaded."""
        key = f"{_of(pointer.round, device, pointer.blob.digest)}/{_POINTER}"
        self._objects.put(key, pointer.model_dump_json().encode(), absent=False, durable=False)

    def announced(self, round_: int, device: str, digest: str) -> BlobPointer | None:
        """An announcement; None: there is none, or it is damaged."""
        try:
            data = self._objects.get(f"{_of(round_, device, digest)}/{_POINTER}")
            return BlobPointer.model_validate_json(data)
        except (KeyError, ValidationError):
            return None

    def others(self, round_: int, device: str) -> list[str]:
        """Digests of all uploads of a device, the one without a new chunk for longest first."""
        last: dict[str, float] = {}
        for found in self._objects.below(f"{PREFIX}/{round_}/{device}"):
            digest = found.key.split("/")[3]
            last[digest] = max(last.get(digest, 0.0), found.modified)
        return sorted(last, key=lambda digest: (last[digest], digest))

    def put(self, device: str, pointer: BlobPointer, index: int, data: bytes) -> None:
        """Store a chunk, which must fit (:func:`check_chunk`)."""
        key = f"{_of(pointer.round, device, pointer.blob.digest)}/{index}"
        self._objects.put(key, data, absent=False, durable=False)

    def present(self, device: str, pointer: BlobPointer) -> Assembly:
        """Which chunks are here; one of another length is not."""
        of = _of(pointer.round, device, pointer.blob.digest)
        return assembly_of(pointer, self._objects.below(of))

    def whole(self, device: str, pointer: BlobPointer) -> bytes:
        """The content of a complete upload.

        Raises:
            KeyError: a chunk is gone: another process has completed it, or its round is over.
            Refused: WRONG_DIGEST.
        """
        of, mark, parts = _of(pointer.round, device, pointer.blob.digest), hashlib.sha256(), []
        for index in range(Assembly(pointer.blob.size, pointer.chunk_bytes).count):
            part = self._objects.get(f"{of}/{index}")
            mark.update(part)
            parts.append(part)
        if mark.hexdigest() != pointer.blob.digest:
            raise Refused(
                Reason.WRONG_DIGEST,
                f"blob {pointer.blob.digest}: the chunks' SHA-256 differs; they are downloaded again",
            )
        return b"".join(parts)

    def discard(self, round_: int, device: str, digest: str) -> None:
        """Remove an upload."""
        self._objects.remove_below(_of(round_, device, digest))

    def discard_all(self, round_: int, device: str) -> None:
        """Remove all uploads of a device."""
        self._objects.remove_below(f"{PREFIX}/{round_}/{device}")

    def forget_before(self, round_: int) -> None:
        """Remove all uploads of earlier rounds."""
        for old in self._objects.folders(PREFIX):
            if not old.isdecimal() or int(old) < round_:
                self._objects.remove_below(f"{PREFIX}/{old}")


def assembly_of(pointer: BlobPointer, found: Iterable[FoundObject]) -> Assembly:
    """Which chunks of an upload a listing shows.

    Args:
        pointer: to the upload.
        found: the objects of the upload.
    """
    assembly = Assembly(pointer.blob.size, pointer.chunk_bytes)
    for one in found:
        name = one.key.rpartition("/")[2]
        if name.isdecimal() and int(name) < assembly.count and one.size == assembly.length_of(int(name)):
            assembly.add(int(name), one.size)
    return assembly


def check_chunk(pointer: BlobPointer, index: int, length: int) -> None:
    """Check that a chunk fits its upload.

    Raises:
        Refused: no such index, or a wrong length.
    """
    wanted = Assembly(pointer.blob.size, pointer.chunk_bytes).length_of(index)
    if length != wanted:
        detail = f"chunk {index} of blob {pointer.blob.digest} has {length} bytes, not {wanted}"
        raise Refused(Reason.MALFORMED, detail)


def may_be_last(assembly: Assembly, index: int, since_look_s: float) -> bool:
    """Whether a process should read the listing after it stored a chunk: others may have the rest.

    Args:
        assembly: what this process knows of.
        index: of the chunk.
        since_look_s: since it last read the listing.
    """
    return index >= assembly.count - _NEAR_END or since_look_s >= _LOOK_S


def _of(round_: int, device: str, digest: str) -> str:
    return f"{PREFIX}/{round_}/{device}/{digest}"
