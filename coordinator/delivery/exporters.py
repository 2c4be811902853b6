"""Make and store the bundles of a version: one for all devices, or one for each serving route.

Bundles of the same content are one blob. A route keeps its bundle until one of a newer version replaces it or
no device has the route any more.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
import structlog

from coordinator.errors import in_words
from coordinator.fleet.routes import RouteGroup, best_bundle, group_by_route
from coordinator.fleet.serving_routes import UNSERVED, ServingRoutes, served
from coordinator.objects.blobs import BlobStorage
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import MOST_NAMED
from coordinator.workers.jobs import ExportLineage, Jobs
from models.contract import Blobs
from protocol.errors import LichenError, Transient
from protocol.messages import BlobRef
from runtime.clock import Clock
from runtime.process.worker import WorkerFailed
from runtime.text import MAX_NAMES

log = structlog.get_logger(__name__)

_BUNDLES_PER_ROUTE: Final = 4
"""Limit of stored bundles, in multiples of ``export.max_routes``."""


class RoutesFailed(LichenError):  # noqa: N818 - says what was found, like Refused
    """Some bundles of a version cannot be made; the others were, and are announced."""


class FleetExporter:
    """One bundle for all devices."""

    routes: None = None

    def __init__(self, store: Database, blobs: BlobStorage, clock: Clock) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> LichenError | None:
        """Make and store the bundle.

        Returns:
            None.

        Raises:
            LichenError, OSError: it could not be made.
        """
        bundle = await jobs.export(state, lineage)
        await self.store_bundle(lineage.version, bundle.data, lineage.metrics)
        return None

    async def store_bundle(self, version: int, data: bytes, metrics: dict[str, float]) -> BlobRef:
        """Store a bundle as the newest export."""
        ref = await asyncio.to_thread(self._blobs.put, data)
        values = {"version": version, "digest": ref.digest, "size": ref.size, "metrics": metrics}
        await asyncio.to_thread(self._store.put, schema.exports, wall=self._clock.wall(), **values)
        log.info("exported", version=version, size=ref.size, digest=ref.digest)
        return ref


class RouteExporter:
    """A bundle for each route."""

    def __init__(
        self, routes: ServingRoutes, store: Database, blobs: BlobStorage, clock: Clock, max_routes: int
    ) -> None:
        self.routes = routes
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._max_routes = max_routes

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> LichenError | None:
        """Make and store a bundle for each route, those for most devices first.

        Returns:
            Transient: some could not be made now. RoutesFailed: some cannot be made. None: all were made.

        Raises:
            Transient: there is no route.
        """
        routes = group_by_route(await asyncio.to_thread(self.routes.all))
        if not routes:  # after a rebuild without a backup: their retained states come soon
            raise Transient("no device is known that reads and predicts anything of the task")
        failed: list[tuple[RouteGroup, LichenError | OSError]] = []
        for route in routes[: self._max_routes]:
            try:
                await self._export(jobs, state, lineage, route)
            except (LichenError, OSError) as error:
                failed.append((route, error))
                log.warning("route_not_exported", route=str(route), why=in_words(error))
        await asyncio.to_thread(self._tidy, routes)
        return _all_in_one(failed, min(len(routes), self._max_routes)) if failed else None

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
        """Whether an earlier attempt made it: before the process ended, or beside a route that failed."""
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
        """Remove bundles that no device needs any more, and record which routes have none."""
        most, left_out = self._max_routes, routes[self._max_routes :]
        if left_out:
            named = list(map(str, left_out[:MAX_NAMES]))
            log.warning("routes_without_bundle", max_routes=most, count=len(left_out), routes=named)
        table = schema.bundles
        order = (table.c.version.desc(), table.c.devices.desc(), table.c.route)
        there = served(self._store)
        # A device without a bundle of its route gets another that fits, which no other device may need.
        fallbacks = (best_bundle(route.need, there) for route in routes)
        wanted = {route.key for route in routes} | {one.need.key for one in fallbacks if one is not None}
        with self._store.transaction() as connection:
            kept = [key for (key,) in connection.execute(sa.select(table.c.route).order_by(*order))]
            kept = [key for key in kept if key in wanted][: _BUNDLES_PER_ROUTE * most]
            connection.execute(table.delete().where(table.c.route.not_in(kept)))
            self._store.put_meta({UNSERVED: json.dumps([route.as_json() for route in left_out[:MOST_NAMED]])})


def _all_in_one(failed: Sequence[tuple[RouteGroup, LichenError | OSError]], of: int) -> LichenError:
    """One error for all: it is Transient if one of them may pass."""
    route, first = failed[0]
    words = f"{len(failed)} of {of} bundles, the first for {route}: {in_words(first)}"
    may_pass = any(
        isinstance(error, (Transient, OSError)) and not isinstance(error, WorkerFailed) for _, error in failed
    )
    return Transient(words) if may_pass else RoutesFailed(words)
