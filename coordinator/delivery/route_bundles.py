"""Bundles where a method is ``routed``: one for each distinct serving route, pointed at on ``down/model``.

Each device has a pointer of its own, retained; ``b/model`` says nothing. Bundles of the same content are one
blob. A route keeps its bundle until a newer version's takes its place or no device has the route any more.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

import sqlalchemy as sa
import structlog

from coordinator.delivery.bundle_catalog import BundleCatalog
from coordinator.errors import in_words
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.serving_routes import (
    UNSERVED,
    RouteGroup,
    ServingRoutes,
    best_bundle,
    group_by_route,
    served,
)
from coordinator.messaging.sender import Sender
from coordinator.round_machine.device_sets import NAMED
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import MOST_NAMED
from coordinator.trust.repository import BundleTarget
from coordinator.trust.signer import PointerSigner
from coordinator.workers.jobs import ExportLineage, Jobs
from models.contract import Blobs
from protocol.errors import LichenError, Transient
from protocol.messages import BlobRef, ModelPointer
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.process.worker import WorkerFailed
from runtime.storage.blob_store import BlobStore

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 32
"""Devices that are told at a time."""
_AGAIN_S: Final = 60.0
"""A device that runs something else and says so often is told so often at most."""
_KEPT_TIMES: Final = 4
"""Bundles that are kept, in multiples of ``export.max_routes``."""


class RoutesFailed(LichenError):  # noqa: N818 - says what was found, like Refused
    """Some bundles of a version cannot be made; the others were, and are announced."""


class RouteBundles:
    """See :class:`.fleet_bundle.BundleDelivery`. ``shelf``: what devices may be pointed at."""

    def __init__(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
        self,
        needs: ServingRoutes,
        store: Database,
        blobs: BlobStore,
        post: Sender,
        roster: DeviceRegistry,
        clock: Clock,
        max_routes: int,
        vouching: PointerSigner,
        shelf: Callable[[], BundleCatalog],
    ) -> None:
        self.needs = needs
        self._store = store
        self._blobs = blobs
        self._post = post
        self._roster = roster
        self._clock = clock
        self._max_routes = max_routes
        self._vouching = vouching
        self._said: dict[str, tuple[tuple[str, int], float]] = {}
        """Device -> digest and serial that it was pointed at last, and when."""
        self._shelf = shelf

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> None:
        """A bundle for each route, those for most devices first; see :class:`Deploying`.

        Raises:
            Transient: some could not be made now.
            RoutesFailed: some cannot be made.
        """
        routes = group_by_route(await asyncio.to_thread(self.needs.all))
        if not routes:  # after a salvage without a backup: their retained states come back soon
            raise Transient("no device is known that reads and predicts anything of the task")
        failed: list[tuple[RouteGroup, LichenError | OSError]] = []
        for route in routes[: self._max_routes]:
            try:
                await self._export(jobs, state, lineage, route)
            except (LichenError, OSError) as error:
                failed.append((route, error))
                log.warning("route_not_exported", route=str(route), why=in_words(error))
        await asyncio.to_thread(self._tidy, routes)
        if failed:
            await self.announce()
            raise _all_in_one(failed, min(len(routes), self._max_routes))

    def lacking(self) -> list[RouteGroup]:
        """Routes of devices for which there is nothing to run, those for most devices first.

        None before the first export: then all wait for that.
        """
        there = tuple(self._shelf())
        routes = group_by_route(self.needs.all()) if there else []
        return [route for route in routes if best_bundle(route.need, there) is None]

    async def _export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage, route: RouteGroup) -> None:
        if await asyncio.to_thread(self._is_made, route.key, lineage):
            return
        blobs = route.need.blobs
        if lacking := [name for name in blobs if name not in state]:
            raise RoutesFailed(f"the model has no blob {lacking[0]}")
        bundle = await jobs.export({name: state[name] for name in blobs}, lineage)
        ref = await asyncio.to_thread(self._keep, bundle.data, lineage, route)
        log.info("exported", version=lineage.version, size=ref.size, digest=ref.digest, route=str(route))

    def _is_made(self, key: str, lineage: ExportLineage) -> bool:
        """Whether an earlier try got so far: before the process ended, or beside a route that failed."""
        table = schema.bundles
        rows = self._store.rows(sa.select(table).where(table.c.route == key))
        known = [(row["version"], row["base"]) for row in rows]
        return known == [(lineage.version, lineage.manifest)] and self._blobs.has(rows[0]["digest"])

    def _keep(self, data: bytes, lineage: ExportLineage, route: RouteGroup) -> BlobRef:
        ref, profile = self._blobs.put(data), route.need.profile
        self._store.put(
            schema.bundles,
            route=route.key,
            blobs=list(route.need.blobs),
            modalities=list(profile.modalities),
            targets=list(profile.targets),
            devices=len(route.devices),
            version=lineage.version,
            base=lineage.manifest,
            wall=self._clock.wall(),
            digest=ref.digest,
            size=ref.size,
            metrics=lineage.metrics,
        )
        return ref

    def _tidy(self, routes: Sequence[RouteGroup]) -> None:
        """Forget bundles that nobody needs any more, and say which routes got none."""
        most, left_out = self._max_routes, routes[self._max_routes :]
        if left_out:
            named = list(map(str, left_out[:NAMED]))
            log.warning("routes_without_bundle", max_routes=most, count=len(left_out), routes=named)
        table = schema.bundles
        order = (table.c.version.desc(), table.c.devices.desc(), table.c.route)
        there = served(self._store)
        # A route whose bundle cannot be made is served another of its kind, which nobody may need besides.
        fallbacks = (best_bundle(route.need, there) for route in routes)
        wanted = {route.key for route in routes} | {one.need.key for one in fallbacks if one is not None}
        with self._store.transaction() as connection:
            kept = [key for (key,) in connection.execute(sa.select(table.c.route).order_by(*order))]
            kept = [key for key in kept if key in wanted][: _KEPT_TIMES * most]
            connection.execute(table.delete().where(table.c.route.not_in(kept)))
            self._store.put_meta({UNSERVED: json.dumps([route.as_json() for route in left_out[:MOST_NAMED]])})

    def kept(self) -> tuple[str, ...]:
        """See :class:`Deploying`."""
        return (*(one.digest for one in served(self._store)), *self._vouching.kept())

    async def announce(self, *, again: bool = False) -> bool:
        """Point each device to its bundle; see :class:`Deploying`.

        ``again``: the devices that are here; the others are told when they come.
        """
        shelf = await asyncio.to_thread(self._shelf)
        if not shelf:
            return True
        needs = await asyncio.to_thread(self.needs.all)
        if again:
            self._said.clear()
        devices = set(self._roster.online()) if again else needs.keys()
        pointers = [
            (device, pointer)
            for device, need in needs.items()
            if device in devices
            and (pointer := shelf.pointer(self._task, device, need)) is not None
            and self._said.get(device, (None, 0.0))[0] != _decision(pointer)
        ]
        for start in range(0, len(pointers), _AT_ONCE):
            group = pointers[start : start + _AT_ONCE]
            if not all(await asyncio.gather(*(self._say(*one) for one in group))):
                return False
        return True

    async def _say(self, device: str, pointer: ModelPointer) -> bool:
        try:
            await self._post.to_device(
                device, Kind.MODEL, await asyncio.to_thread(self._vouched, pointer, device)
            )
        except LichenError as error:
            log.warning("model_not_announced", device=device, version=pointer.version, why=str(error))
            return False
        self._said[device] = (_decision(pointer), self._clock.now())
        return True

    async def pointer_for(self, device: str, *, came: bool) -> ModelPointer | None:
        """What it should run, where that is not what it says it runs; see :class:`Deploying`."""
        known, pointer = self._roster.get(device), await asyncio.to_thread(self._look_up, device)
        if known is None or pointer is None:
            return None
        wanted, now = _decision(pointer), self._clock.now()
        said, at = self._said.get(device, (wanted, -_AGAIN_S))
        runs = known.state.model == pointer.bundle.digest
        if said == wanted and (runs or (not came and now - at < _AGAIN_S)):
            return None
        try:
            vouched = await asyncio.to_thread(self._vouched, pointer, device)
        except (LichenError, OSError) as error:
            log.warning("model_not_announced", device=device, version=pointer.version, why=str(error))
            return None
        self._said[device] = (wanted, now)
        return vouched

    def _vouched(self, pointer: ModelPointer, device: str) -> ModelPointer:
        """With what vouches for the bundles of all routes."""
        refs = {(one.version, one.digest): BlobRef(digest=one.digest, size=one.size) for one in self._shelf()}
        bundles = [
            BundleTarget(task=self._task, version=version, ref=refs[version, name])
            for version, name in sorted(refs)
        ]
        return self._vouching.vouched(pointer, bundles, device)

    def _look_up(self, device: str) -> ModelPointer | None:
        shelf = self._shelf()
        need = self.needs.one(device) if shelf else None
        return None if need is None else shelf.pointer(self._task, device, need)

    @property
    def _task(self) -> str:
        return self.needs.task.name


def _decision(pointer: ModelPointer) -> tuple[str, int]:
    """What tells two pointers of one device apart: of a rollout also when it was decided."""
    return pointer.bundle.digest, pointer.serial


def _all_in_one(failed: Sequence[tuple[RouteGroup, LichenError | OSError]], of: int) -> LichenError:
    """One error for all: it is tried again where one of them may pass."""
    route, first = failed[0]
    words = f"{len(failed)} of {of} bundles, the first for {route}: {in_words(first)}"
    may_pass = any(
        isinstance(error, (Transient, OSError)) and not isinstance(error, WorkerFailed) for _, error in failed
    )
    return Transient(words) if may_pass else RoutesFailed(words)
