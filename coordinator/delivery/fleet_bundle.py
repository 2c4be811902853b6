"""The bundle the fleet should run: stored, pointed at on ``b/model`` (retained), pulled by the devices."""

import asyncio
from typing import Any, Protocol

import sqlalchemy as sa
import structlog

from coordinator.messaging.sender import Sender
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.trust.repository import BundleTarget
from coordinator.trust.signer import NoSigner, PointerSigner
from coordinator.workers.jobs import ExportLineage, Jobs
from models.contract import Blobs
from protocol.errors import LichenError
from protocol.messages import BlobRef, ModelPointer
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.storage.blob_store import BlobStore

log = structlog.get_logger(__name__)


class BundleDelivery(Protocol):
    """Makes bundles of a version, and tells devices which of them is theirs."""

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> None:
        """Make and keep the bundles of a version; what is there already is not made again.

        Raises:
            LichenError, OSError: not all of them could be made; those that were are kept.
        """

    def kept(self) -> tuple[str, ...]:
        """Digests of bundles that must stay."""

    async def announce(self, *, again: bool = False) -> bool:
        """Publish what devices should run.

        Args:
            again: also what was published before: the broker may have lost it.

        Returns:
            Whether there is nothing left to announce; False: the broker is away, the next connect does it.
        """

    async def pointer_for(self, device: str, *, came: bool) -> ModelPointer | None:
        """What a device that has just said its state is to be told alone; None where there is nothing.

        Args:
            device: its name.
            came: it was away before.
        """


class FleetBundle:
    """The newest bundle and its announcement, where all devices run the same."""

    def __init__(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
        self,
        store: Database,
        blobs: BlobStore,
        post: Sender,
        task: str,
        clock: Clock,
        vouching: PointerSigner | None = None,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._post = post
        self._task = task
        self._clock = clock
        self._vouching = vouching or NoSigner()

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> None:
        """See :class:`BundleDelivery`."""
        bundle = await jobs.export(state, lineage)
        await self.store_bundle(lineage.version, bundle.data, lineage.metrics)

    async def store_bundle(self, version: int, data: bytes, metrics: dict[str, float]) -> BlobRef:
        """Keep a bundle; from now on it is the one to announce."""
        ref = await asyncio.to_thread(self._blobs.put, data)
        values = {"version": version, "digest": ref.digest, "size": ref.size, "metrics": metrics}
        await asyncio.to_thread(self._store.put, schema.exports, wall=self._clock.wall(), **values)
        log.info("exported", version=version, size=ref.size, digest=ref.digest)
        return ref

    def pointer(self) -> ModelPointer | None:
        """What devices should run; None before the first export."""
        table = schema.exports
        rows: list[dict[str, Any]] = self._store.rows(
            sa.select(table).order_by(table.c.version.desc()).limit(1)
        )
        if not rows:
            return None
        bundle = BlobRef(digest=rows[0]["digest"], size=rows[0]["size"])
        return ModelPointer(
            task=self._task, version=rows[0]["version"], bundle=bundle, metrics=rows[0]["metrics"]
        )

    def _vouched(self) -> ModelPointer | None:
        pointer = self.pointer()
        if pointer is None:
            return None
        one = BundleTarget(task=pointer.task, version=pointer.version, ref=pointer.bundle)
        return self._vouching.vouched(pointer, [one])

    def kept(self) -> tuple[str, ...]:
        """See :class:`BundleDelivery`."""
        pointer = self.pointer()
        return () if pointer is None else (pointer.bundle.digest, *self._vouching.kept())

    async def announce(self, *, again: bool = False) -> bool:
        """See :class:`BundleDelivery`; one message, retained, so it is always said."""
        del again
        try:
            pointer = await asyncio.to_thread(self._vouched)
            if pointer is None:
                return True
            await self._post.broadcast(Kind.FLEET_MODEL, pointer)
        except LichenError as error:
            log.warning("model_not_announced", why=str(error))
            return False
        return True

    async def pointer_for(self, device: str, *, came: bool) -> ModelPointer | None:
        """None: ``b/model`` speaks to all."""
        del device, came
        return None
