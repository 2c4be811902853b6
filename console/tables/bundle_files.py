"""Bundles of versions, from the place of the coordinator's blobs: read alone, in bounded parts."""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.objects.blobs import key_of
from coordinator.objects.contract import ObjectStore
from coordinator.objects.folder import FolderObjects
from coordinator.recovery.open_stores import open_bucket
from coordinator.rollout.releases import FOLDER
from protocol.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, BundleManifest, read_head
from protocol.errors import LichenError, Reason, Refused, Transient

PART_BYTES: Final = 512 * 1024
_AT_ONCE: Final = 4
_MANIFESTS: Final = 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


class BundleFiles:
    """Reads bundles by digest, and no other file.

    Args:
        settings: of the coordinator.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._folder = FolderObjects(settings.state_dir)
        self._bucket: ObjectStore | None = None
        self._manifests: OrderedDict[str, BundleManifest] = OrderedDict()
        self._running = 0

    async def manifest(self, digest: str) -> BundleManifest | None:
        """The manifest of a bundle, not verified; None: it is not here, or cannot be read now."""
        if digest not in self._manifests:
            try:
                found = await asyncio.to_thread(self._find, digest)
                if found is None:
                    return None
                store, key, _ = found
                head = await asyncio.to_thread(store.get, key, 0, HEAD_BYTES)
                self._manifests[digest] = read_head(head)
            except (LichenError, KeyError):
                return None
            while len(self._manifests) > _MANIFESTS:
                self._manifests.popitem(last=False)
        return self._manifests[digest]

    async def open(self, digest: str, size: int) -> AsyncIterator[bytes]:
        """The parts of a bundle; its last part comes only if the whole has that digest.

        Args:
            digest: of the bundle.
            size: bytes, as the tables say.

        Raises:
            Refused: it is not stored any more; FULL: too many are downloaded now.
            Transient: the place cannot be read now, or has other bytes.
        """
        found = await asyncio.to_thread(self._find, digest)
        if found is None:
            raise Refused(Reason.UNKNOWN_TASK, f"bundle {digest[:12]} is not stored any more")
        store, key, there = found
        if there != size or size > MAX_BUNDLE_BYTES:
            raise Transient(f"bundle {digest[:12]} has {there} bytes where it is stored, not {size}")
        parts = self._parts(store, key, digest, size)
        return _from_first(await anext(parts, b""), parts)  # it takes its place now, and not when it is sent

    async def _parts(
        self, store: ObjectStore, key: str, digest: str, size: int
    ) -> AsyncGenerator[bytes, None]:
        if self._running >= _AT_ONCE:
            raise Refused(Reason.FULL, f"{_AT_ONCE} bundles are being downloaded now; try again")
        mark = hashlib.sha256()
        self._running += 1
        try:
            for start in range(0, size, PART_BYTES):
                part = await asyncio.to_thread(store.get, key, start, min(PART_BYTES, size - start))
                mark.update(part)
                last = start + PART_BYTES >= size
                if not part or (last and mark.hexdigest() != digest):
                    raise Transient(f"bundle {digest[:12]}: its place has other bytes; nothing can be used")
                yield part
        finally:
            self._running -= 1

    def _find(self, digest: str) -> tuple[ObjectStore, str, int] | None:
        """Where a bundle is, and its bytes: among the blobs, or among those that an operator brought."""
        if not _DIGEST.match(digest):
            return None
        if self._bucket is None:
            self._bucket = open_bucket(self._settings.storage)
        for store, key in (
            (self._bucket or self._folder, key_of(digest)),
            (self._folder, f"{FOLDER}/{digest}"),
        ):
            found = store.head(key)
            if found is not None:
                return store, key, found.size
        return None


async def _from_first(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for part in rest:
            yield part
