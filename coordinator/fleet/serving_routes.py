"""Serving routes of a ``routed`` method: the parts of the model that each device is served.

A device's serving route follows from what it reads and predicts, and from the message of its last accepted
update; both are on disk, so a restart changes no route.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import sqlalchemy as sa
import structlog

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import profile_of, trains
from coordinator.fleet.routes import ReleaseBundle, ServingNeed
from coordinator.storage import schema
from coordinator.storage.database import Database
from models.contract import Profile, RoutedServer, Server
from protocol.errors import Refused
from protocol.messages import BlobRef
from protocol.tasks.task import Task

log = structlog.get_logger(__name__)

UNSERVED: Final = "unserved"
"""The key of the table ``meta``: routes that the last export left without a bundle, as JSON."""
_MAX_KINDS: Final = 4096


@dataclass(eq=False, repr=False)
class ServingRoutes:
    """Reads each device's route. Synchronous, thread-safe."""

    task: Task
    server: RoutedServer
    store: Database
    roster: DeviceRegistry
    barred: Callable[[str], Refused | None]

    def all(self) -> dict[str, ServingNeed]:
        """Of every registered device that is not barred, and reads and predicts something of the task."""
        table = schema.messages
        said = {row["device"]: row["extra"] for row in self.store.rows(sa.select(table))}
        found = {device: self._need(device, said.get(device)) for device in self.roster.names()}
        return {device: need for device, need in found.items() if need is not None}

    def one(self, device: str) -> ServingNeed | None:
        """Of one device."""
        table = schema.messages
        rows = self.store.rows(sa.select(table.c.extra).where(table.c.device == device))
        return self._need(device, rows[0]["extra"] if rows else None)

    def _need(self, device: str, extra: Mapping[str, Any] | None) -> ServingNeed | None:
        known = self.roster.get(device)
        if known is None or self.barred(device) is not None:
            return None
        profile = profile_of(self.task, known.state)
        if not profile.modalities or not profile.targets:
            return None
        try:
            return ServingNeed(profile, self.server.serving_route(self.task, profile, extra))
        except Refused as refused:  # it was valid when it came: another release wrote it, or it is damaged
            log.warning("message_unreadable", device=device, why=str(refused))
        return ServingNeed(profile, self.server.serving_route(self.task, profile, None))


def routing(server: Server) -> RoutedServer | None:
    """The decoded message, if the method is ``routed``."""
    return cast("RoutedServer", server) if hasattr(server, "serving_route") else None


class TrainingRoutes:
    """Names of the blobs that a device may need to learn; computed once for devices of the same kind."""

    def __init__(self, task: Task, server: Server, roster: DeviceRegistry) -> None:
        self._task = task
        self._server = server
        self._roster = roster
        self._known: dict[tuple[bool, Profile], tuple[str, ...]] = {}

    def __call__(self, device: str) -> tuple[str, ...]:
        """Of one device; empty if it is not registered."""
        known = self._roster.get(device)
        if known is None:
            return ()
        kind = trains(known.state), profile_of(self._task, known.state)
        if kind not in self._known:
            if len(self._known) >= _MAX_KINDS:
                self._known.clear()
            self._known[kind] = self._ask(*kind)
        return self._known[kind]

    def _ask(self, training: bool, profile: Profile) -> tuple[str, ...]:  # noqa: FBT001 - a part of the key
        if training:
            return self._server.route(self._task, profile)
        return self._server.prototype_route(self._task, profile.modalities)


def served(store: Database) -> tuple[ReleaseBundle, ...]:
    """The bundles of all routes, the newest first."""
    table = schema.bundles
    order = (table.c.version.desc(), table.c.devices.desc(), table.c.route)
    return tuple(
        ReleaseBundle(
            version=row["version"],
            bundle=BlobRef(digest=row["digest"], size=row["size"]),
            metrics=row["metrics"],
            blobs=tuple(row["blobs"]),
            modalities=tuple(row["modalities"]),
            targets=tuple(row["targets"]),
            devices=row["devices"],
            base=row["base"],
        )
        for row in store.rows(sa.select(table).order_by(*order))
    )


def unserved(store: Database) -> list[dict[str, Any]]:
    """Routes that the last export left out."""
    found: list[dict[str, Any]] = json.loads(store.get_meta(UNSERVED) or "[]")
    return found
