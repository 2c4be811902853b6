"""Blobs that several tasks of a device need, as a backbone: each is fetched once, and stored once.

Each task has a blob store of its own, which pins and removes its own names. What another task's store has is
linked: the bytes stay on the disk as long as one of the stores has them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from protocol.messages import BlobRef
from runtime.storage.blob_store import BlobStore, path_in

_log = structlog.get_logger(__name__)


class DeviceBlobs:
    """One object for all tasks of the device.

    Args:
        roots: folders of the tasks' blob stores; none: the device has one task.
    """

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def obtain(self, ref: BlobRef, store: BlobStore, fetch: Callable[[], Awaitable[object]]) -> None:
        """Have a blob in a task's store: it is there, another task has it, or it is fetched.

        One task at a time obtains a digest; if its coordinator does not give it, the next one tries its own.

        Args:
            ref: of the blob.
            store: of the task.
            fetch: into ``store``.

        Raises:
            LichenError: as ``fetch``, or there is no space left.
        """
        lock = self._locks.setdefault(ref.digest, asyncio.Lock())  # lives while a task holds it or waits
        async with lock:
            if not await asyncio.to_thread(self._is_here, ref, store):
                await fetch()

    def _is_here(self, ref: BlobRef, store: BlobStore) -> bool:
        if store.has(ref.digest):
            return True
        for root in self._roots:
            if store.adopt(ref, path_in(root, ref.digest)):
                _log.info("blob_shared", blob=ref.digest, size=ref.size)
                return True
        return False
