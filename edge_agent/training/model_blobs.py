"""Global versions, fetched blob by blob: only blobs on the route, and only missing ones."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import structlog
from pydantic import ValidationError

from edge_agent.config.agent import AgentSettings
from edge_agent.training.shorter_ways import ShorterWays
from edge_agent.windows.workspace import require_windows
from models import registry
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, ClientContext, Profile, Tensors
from models.materials import Material
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.frames.frame import decode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.messages import BlobRef, Offer
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore

_log = structlog.get_logger(__name__)


class ModelBlobs:
    """Fetches, checks and reads blobs. A damaged one is removed, so that it is fetched again."""

    def __init__(self, settings: AgentSettings, blobs: BlobStore, fetcher: Fetcher) -> None:
        self._settings = settings
        self._blobs = blobs
        self._fetcher = fetcher
        self._shorter = ShorterWays(blobs, self._fetch)
        self.last_route: tuple[str, ...] = ()
        """Names of the blobs that the last training started from, for status."""

    async def fetch_for_training(
        self, offer: Offer, context: ClientContext, data: Material, private: Tensors
    ) -> Blobs:
        """The offer's base on the route of ``context.profile``; a routed method's router chooses the route.

        If a method keeps parts of its state for single devices, this device's own are on its route, provided
        that the version has them (not yet those of a new device).

        Raises:
            Transient: a blob was not here in time, or the disk is full.
            Refused: a blob does not match its digest or its name, or the router cannot use it.
        """
        task, profile = context.task, context.profile or Profile(())
        spec = registry.method(task.method)
        if not spec.routed:
            own = tuple(f"{part}/{context.device}" for part in spec.owned)
            state = await self.fetch(offer, spec.server().route(task, profile), own=own)
        else:
            router, windows = spec.router(), require_windows(data)

            async def choose(first: Blobs) -> tuple[str, ...]:
                try:
                    return await asyncio.to_thread(router.choose, context, windows, first, private)
                except LichenError:
                    raise
                except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of the fetched blobs
                    raise Refused(
                        Reason.WRONG_TENSORS,
                        f"version {offer.base[:12]}: the router of method {task.method!r} cannot use "
                        f"{', '.join(first)}: {type(error).__name__}: {error}"[:500],
                    ) from None

            state = await self.fetch_routed(offer, router.first(task, profile), choose)
        self.last_route = tuple(sorted(state))
        return state

    async def fetch(
        self,
        offer: Offer,
        route: tuple[str, ...],
        also: Iterable[BlobRef] = (),
        own: tuple[str, ...] = (),
    ) -> Blobs:
        """The offer's base on a route; unchanged blobs are here already.

        Args:
            offer: names the base.
            route: names of blobs.
            also: further blobs to fetch and to keep.
            own: names of blobs of this device alone; on the route if the version has them.

        Raises:
            Transient: a blob was not here in time, or the disk is full.
            Refused: a blob does not match its digest or its name.
        """
        manifest = await self._manifest(offer)
        here = tuple(name for name in own if name in manifest.blobs)
        return await self._pulled(offer, manifest, (*route, *here), also)

    async def fetch_model(self, offer: Offer) -> Blobs:
        """All blobs of the offer's base that methods know, for secure rounds. Raises as :meth:`fetch`."""
        manifest = await self._manifest(offer)
        names = tuple(model_of({name: {} for name in manifest.blobs}))
        return await self._pulled(offer, manifest, names)

    async def fetch_routed(
        self,
        offer: Offer,
        first: tuple[str, ...],
        choose: Callable[[Blobs], Awaitable[tuple[str, ...]]],
    ) -> Blobs:
        """The offer's base on a route that depends on some of its blobs, which are fetched first.

        Args:
            offer: names the base.
            first: names of the blobs needed to choose.
            choose: computes the names of all blobs of the route from those.

        Raises:
            Transient, Refused: as :meth:`fetch`.
        """
        manifest = await self._manifest(offer)
        _refs(manifest, offer, first)
        await self._shorter.obtain(manifest, first)
        route = await choose(await asyncio.to_thread(self._read, manifest, first))
        return await self._pulled(offer, manifest, route)

    async def _manifest(self, offer: Offer) -> Manifest:
        await self._fetch([BlobRef(digest=offer.base, size=offer.base_size)])
        return _manifest(await asyncio.to_thread(self.blob, "manifest", offer.base), offer)

    async def _pulled(
        self, offer: Offer, manifest: Manifest, route: tuple[str, ...], also: Iterable[BlobRef] = ()
    ) -> Blobs:
        wanted = [*_refs(manifest, offer, route), *also]
        keep = {offer.base, *(ref.digest for ref in wanted)}
        parents = {manifest.differences[name].parent for name in route if name in manifest.differences}
        await asyncio.to_thread(self._make_room, keep | parents, wanted)
        await self._shorter.obtain(manifest, route)
        await self._fetch(also)
        state = await asyncio.to_thread(self._read, manifest, route)
        await asyncio.to_thread(self._blobs.collect, keep, self._settings.blob_budget_bytes)
        return state

    def _make_room(self, keep: Iterable[str], wanted: Iterable[BlobRef]) -> None:
        """Remove blobs of old versions if the disk is too full for this one."""
        lacking = sum(ref.size for ref in wanted if not self._blobs.has(ref.digest))
        # A download is on disk twice for a moment: as chunks, and as a blob.
        if lacking and (freed := self._blobs.make_room(keep, 2 * lacking)):
            _log.warning("old_blobs_removed", detail="the disk is full", bytes=freed)

    async def _fetch(self, refs: Iterable[BlobRef]) -> None:
        for ref in refs:
            await self._fetcher.fetch(ref, self._settings.fetch_timeout_s)

    def blob(self, name: str, digest: str) -> bytes:
        """A fetched blob, verified. Synchronous.

        Args:
            name: of the blob, for messages.
            digest: of the blob.

        Raises:
            Transient: it is missing.
            Refused: it is damaged; it is removed.
        """
        try:
            return self._blobs.get(digest)
        except KeyError:
            raise Transient(f"the blob {name!r} is missing from {self._settings.cache_dir}") from None
        except Refused as error:
            raise Refused(
                error.reason, f"the blob {name!r} is damaged; it is fetched again: {error.detail}"
            ) from None

    def path(self, digest: str) -> Path:
        """Path of a fetched blob."""
        return self._blobs.path(digest)

    def _read(self, manifest: Manifest, route: tuple[str, ...]) -> Blobs:
        state: Blobs = {}
        for name in route:
            header, tensors = decode_frame(self.blob(name, manifest.blobs[name].digest), BlobHeader)
            if header.name != name:
                raise Refused(Reason.WRONG_TENSORS, f"the blob {name!r} says that it is {header.name!r}")
            state[name] = tensors
        return state


def _refs(manifest: Manifest, offer: Offer, route: tuple[str, ...]) -> list[BlobRef]:
    missing = [name for name in route if name not in manifest.blobs]
    if missing:
        raise Refused(Reason.WRONG_TENSORS, f"version {offer.base} lacks the blob {missing[0]!r}")
    return [manifest.blobs[name] for name in route]


def _manifest(data: bytes, offer: Offer) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise Refused(Reason.MALFORMED, f"manifest {offer.base}: {error}"[:500]) from None
    if manifest.task != offer.task:
        raise Refused(Reason.UNKNOWN_TASK, f"manifest {offer.base} is of task {manifest.task!r}")
    return manifest
