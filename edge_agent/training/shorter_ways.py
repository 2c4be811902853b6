"""Gets the blobs of a version by the way of fewest bytes: differences, a packed whole, or the blob itself.

Each way ends with the same bytes, whose digest is in the signed version. So a way that is gone, damaged or
wrong costs its bytes, and the next one is taken.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog
from pydantic import ValidationError

from protocol.errors import Reason, Refused, Transient
from protocol.frames.differences import unpacked
from protocol.frames.headers import BlobIndex, Manifest
from protocol.messages import BlobRef
from runtime.storage.blob_store import BlobStore

_log = structlog.get_logger(__name__)
MAX_DIFFERENCES: Final = 16
"""Differences that are applied one after the other, at most."""
_SHARE: Final = 0.4
"""Share of a blob's bytes that differences may cost: about what a packed whole one does."""


def worth_it(cost: int, size: int) -> bool:
    """Whether differences of ``cost`` bytes are the shorter way to a blob of ``size`` bytes."""
    return cost <= _SHARE * size


@dataclass(frozen=True)
class _Step:
    """One difference on the way: what to fetch, what it is added to, and what it makes."""

    parent: str
    packed: BlobRef
    result: BlobRef


class ShorterWays:
    """Fetches and applies packed blobs; what it obtains is in the store.

    Args:
        store: of the device.
        fetch: puts blobs into the store; raises ``Transient`` or ``Refused``.
    """

    def __init__(self, store: BlobStore, fetch: Callable[[Iterable[BlobRef]], Awaitable[None]]) -> None:
        self._store = store
        self._fetch = fetch
        self.bytes_spared = 0
        """Bytes of blobs minus those that were fetched in their place."""

    async def obtain(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Put these blobs of a version into the store.

        Raises:
            Transient: a blob was not here in time, or the disk is full.
            Refused: a blob does not match its digest.
        """
        index: dict[str, BlobRef] | None = None
        for name in names:
            ref = manifest.blobs[name]
            if await asyncio.to_thread(self._store.has, ref.digest):
                await self._fetch([ref])
                continue
            if await self._by_differences(manifest, name):
                continue
            if index is None:
                index = await self._index(manifest)
            if name in index and await self._applied(name, [_Step("", index[name], ref)]):
                continue
            await self._fetch([ref])

    async def _by_differences(self, manifest: Manifest, name: str) -> bool:
        steps = await self._chain(manifest, name)
        return bool(steps) and await self._applied(name, steps)

    async def _chain(self, manifest: Manifest, name: str) -> list[_Step]:
        """Differences from a blob that is here to that of this version; none: there is no short way."""
        wanted, steps, cost = manifest.blobs[name], list[_Step](), 0
        for _ in range(MAX_DIFFERENCES):
            result, difference = manifest.blobs.get(name), manifest.differences.get(name)
            if result is None:
                return []
            if difference is not None:
                cost += difference.blob.size
                steps.insert(0, _Step(difference.parent, difference.blob, result))
                if await asyncio.to_thread(self._store.has, difference.parent):
                    return steps
            cost += manifest.parent_size or 0
            if not worth_it(cost, wanted.size):
                return []
            before = await self._parent(manifest)
            unchanged = before is not None and difference is None and before.blobs.get(name) == result
            if before is None or (difference is None and not unchanged):
                return []
            manifest = before
        return []

    async def _parent(self, manifest: Manifest) -> Manifest | None:
        """The manifest of the version before; None if it cannot be had."""
        if manifest.parent is None or manifest.parent_size is None:
            return None
        try:
            await self._fetch([BlobRef(digest=manifest.parent, size=manifest.parent_size)])
            return Manifest.model_validate_json(await asyncio.to_thread(self._store.get, manifest.parent))
        except (KeyError, Refused, Transient, ValidationError) as error:
            _log.info("way_not_known", version=manifest.version - 1, why=str(error)[:200])
            return None

    async def _index(self, manifest: Manifest) -> dict[str, BlobRef]:
        """The packed whole blobs of a version; none if they cannot be had."""
        if manifest.packed is None:
            return {}
        try:
            await self._fetch([manifest.packed])
            data = await asyncio.to_thread(self._store.get, manifest.packed.digest)
            return dict(BlobIndex.model_validate_json(data).blobs)
        except (KeyError, Refused, Transient, ValidationError) as error:
            _log.info("way_not_known", version=manifest.version, why=str(error)[:200])
            return {}

    async def _applied(self, name: str, steps: list[_Step]) -> bool:
        """Fetch and apply; whether the blob is here now. The packed blobs are removed."""
        packed = [step.packed for step in steps]
        try:
            await self._fetch(packed)
            await asyncio.to_thread(self._make, name, steps)
        except Transient as error:  # what was received stays, to continue
            _log.info("shorter_way_failed", blob=name, why=str(error)[:500])
            return False
        except (KeyError, Refused) as error:
            _log.warning("shorter_way_failed", blob=name, why=str(error)[:500])
            await asyncio.to_thread(self._forget, packed)
            return False
        await asyncio.to_thread(self._forget, packed)
        self.bytes_spared += steps[-1].result.size - sum(ref.size for ref in packed)
        return True

    def _make(self, name: str, steps: list[_Step]) -> None:
        held = self._store.get(steps[0].parent) if steps[0].parent else None
        for step in steps:
            held = unpacked(self._store.get(step.packed.digest), held, name, step.result)
        if held is None or len(held) != steps[-1].result.size:
            raise Refused(Reason.WRONG_DIGEST, f"the blob {name!r} has another size than announced")
        self._store.put(held)

    def _forget(self, packed: list[BlobRef]) -> None:
        for ref in packed:
            self._store.remove(ref.digest)
