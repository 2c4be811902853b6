"""Blobs by digest: what the coordinator needs of their store, and the store in a bucket."""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from coordinator.objects.cache import BlobCache
from coordinator.objects.contract import FoundObject, ObjectStore
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest as digest_of
from protocol.messages import BlobRef

log = structlog.get_logger(__name__)

PREFIX: Final = "blobs"
_SEEN: Final = 4096
_FRESH_S: Final = 60.0
"""A blob that was seen in the store so lately is there."""
_PAGE: Final = 1000


class BlobStorage(Protocol):
    """Blobs by digest. Synchronous and thread-safe: call it in a thread.

    :class:`runtime.storage.blob_store.BlobStore` is the one in a folder. Every method may raise ``Transient``
    if the store does not answer.
    """

    def has(self, digest: str) -> bool:
        """Whether it is here (not verified)."""

    def size(self, digest: str) -> int:
        """Bytes of a blob.

        Raises:
            KeyError: it is not here.
        """

    def put(self, data: bytes) -> BlobRef:
        """Store durably; storing the same bytes again costs little."""

    def get(self, digest: str) -> bytes:
        """A verified blob.

        Raises:
            KeyError: it is not here.
            Refused: WRONG_DIGEST, the store has other bytes.
        """

    def read(self, digest: str, start: int, size: int) -> bytes:
        """A part of a blob, not verified.

        Raises:
            KeyError: it is not here.
        """

    def read_chunk(self, digest: str, index: int, chunk_bytes: int) -> bytes:
        """One chunk, not verified: the receiver verifies the whole.

        Raises:
            KeyError: no such blob.
            Refused: MALFORMED, there is no chunk of that index.
        """

    def names(self) -> Iterable[str]:
        """Digests of all blobs (not verified), each once."""

    def collect(self, keep: Iterable[str]) -> int:
        """Remove blobs that no digest in ``keep`` names; returns the bytes freed."""


class SharedBlobs:
    """Blobs in a store that several machines share, with a cache on this one.

    A blob that is written twice is the same, so writers need no agreement. Removal needs one: a machine may
    rely on a blob that it found here, before a version names it. So :meth:`put` writes a blob anew that has
    been here for more than half of the grace, and :meth:`collect` removes none that is younger than it.

    Args:
        objects: the store.
        cache: on this machine.
        grace_s: a blob younger than this is never removed.
    """

    def __init__(self, objects: ObjectStore, cache: BlobCache, grace_s: float) -> None:
        self._objects = objects
        self._cache = cache
        self._grace_s = grace_s
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Sizes of blobs, and when each was last seen in the store (monotonic)."""
        self._damaged: set[str] = set()
        self._ahead_s: float | None = None
        self._lock = threading.Lock()
        self._fills: WeakValueDictionary[str, _Fill] = WeakValueDictionary()

    def has(self, digest: str) -> bool:
        """See :class:`BlobStorage`."""
        with self._lock:
            _, at = self._seen.get(digest, (0, -inf))
        if time.monotonic() - at < _FRESH_S:
            return True
        found = self._objects.head(key_of(digest))
        if found is not None:
            self._remember(digest, found.size)
        return found is not None

    def size(self, digest: str) -> int:
        """See :class:`BlobStorage`; remembered, as a blob never changes."""
        key = key_of(digest)
        with self._lock:
            if digest in self._seen:
                return self._seen[digest][0]
        found = self._objects.head(key)
        if found is None:
            raise KeyError(f"no blob {digest}")
        self._remember(digest, found.size)
        return found.size

    def _remember(self, digest: str, size: int) -> None:
        with self._lock:
            self._seen[digest] = size, time.monotonic()
            self._seen.move_to_end(digest)
            while len(self._seen) > _SEEN:
                self._seen.popitem(last=False)

    def put(self, data: bytes) -> BlobRef:
        """See :class:`BlobStorage`."""
        ref = BlobRef(digest=digest_of(data), size=len(data))
        key = key_of(ref.digest)
        if not self._objects.put(key, data) and self._is_to_be_written_anew(ref, self._objects.head(key)):
            self._objects.put(key, data, absent=False)
        self._damaged.discard(ref.digest)
        self._remember(ref.digest, ref.size)
        self._cache.add(ref.digest, ref.size, [data])
        return ref

    def _is_to_be_written_anew(self, ref: BlobRef, found: FoundObject | None) -> bool:
        if found is None or found.size != ref.size or ref.digest in self._damaged:
            return True
        return self._now() - found.modified > self._grace_s / 2

    def get(self, digest: str) -> bytes:
        """See :class:`BlobStorage`; other bytes than the digest says stay in the store until a put."""
        size = self.size(digest)
        if (data := self._cache.read(digest, 0, size)) is not None and digest_of(data) == digest:
            return data
        data = self._objects.get(key_of(digest))
        if digest_of(data) != digest:
            self._damaged.add(digest)
            raise Refused(Reason.WRONG_DIGEST, f"the store returns other bytes as blob {digest}")
        self._cache.add(digest, size, [data])
        return data

    def read(self, digest: str, start: int, size: int) -> bytes:
        """See :class:`BlobStorage`; from the cache, which takes the whole blob if it has room."""
        if (data := self._cache.read(digest, start, size)) is not None:
            return data
        whole = self.size(digest)
        if self._cache.takes(whole):
            with self._fill(digest):
                if (data := self._cache.read(digest, start, size)) is not None:
                    return data
                self._fetch(digest, whole)
                if (data := self._cache.read(digest, start, size)) is not None:
                    return data
        return self._objects.get(key_of(digest), start, size)

    def _fetch(self, digest: str, size: int) -> None:
        try:
            self._cache.add(digest, size, self._objects.stream(key_of(digest)))
        except Refused:
            self._damaged.add(digest)
            raise

    @contextlib.contextmanager
    def _fill(self, digest: str) -> Iterator[None]:
        """One thread fills the cache with a blob; others that want it wait."""
        with self._lock:
            fill = self._fills.get(digest) or _Fill()
            self._fills[digest] = fill
        with fill.lock:
            yield

    def read_chunk(self, digest: str, index: int, chunk_bytes: int) -> bytes:
        """See :class:`BlobStorage`."""
        size = self.size(digest)
        if index < 0 or chunk_bytes < 1 or index * chunk_bytes >= max(size, 1):
            words = f"blob {digest} of {size} bytes has no chunk {index} of {chunk_bytes} bytes"
            raise Refused(Reason.MALFORMED, words)
        start = index * chunk_bytes
        return self.read(digest, start, min(chunk_bytes, size - start)) if size else b""

    def names(self) -> Iterator[str]:
        """See :class:`BlobStorage`; a page at a time."""
        return (found.key.rpartition("/")[2] for found in self._objects.below(PREFIX))

    def collect(self, keep: Iterable[str]) -> int:
        """See :class:`BlobStorage`; never a blob younger than the grace, by the clock of the store."""
        kept, freed = set(keep), 0
        now = self._now(fresh=True)
        old = (
            found
            for found in self._objects.below(PREFIX)
            if found.key.rpartition("/")[2] not in kept and now - found.modified > self._grace_s
        )
        while page := list(islice(old, _PAGE)):
            self._objects.remove(found.key for found in page)
            for found in page:
                digest = found.key.rpartition("/")[2]
                self._cache.remove(digest)
                with self._lock:
                    self._seen.pop(digest, None)
            freed += sum(found.size for found in page)
        return freed

    def url(self, digest: str, seconds: float) -> str | None:
        """A URL with which a device may download a blob for so long; a secret of that device."""
        return self._objects.url(key_of(digest), seconds)

    def _now(self, *, fresh: bool = False) -> float:
        """The clock of the store."""
        if self._ahead_s is None or fresh:
            self._ahead_s = self._objects.now() - time.time()
        return time.time() + self._ahead_s


@dataclass(frozen=True, slots=True)
class DownloadLinks:
    """URLs of larger blobs for devices, valid for some time."""

    blobs: SharedBlobs
    above_bytes: int
    seconds: float

    def url(self, digest: str) -> str | None:
        """See :meth:`SharedBlobs.url`."""
        return self.blobs.url(digest, self.seconds)


class _Fill:
    """A lock that weak references may point to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def key_of(digest: str) -> str:
    """The key of a blob."""
    return f"{PREFIX}/{digest[:2]}/{digest}"
