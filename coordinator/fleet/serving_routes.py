"""Serving routes of a ``routed`` method: the parts of the model that each device is served.

A device's serving route follows from what it reads and predicts, and from the message of its last accepted
update; both are on disk, so a restart changes no route. Devices with the same route share a bundle.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import sqlalchemy as sa
import structlog
from pydantic import Field

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import profile_of, trains
from coordinator.storage import schema
from coordinator.storage.database import Database
from models.contract import Profile, RoutedServer, Server
from protocol.base import Count, Wire
from protocol.errors import Refused
from protocol.frames.frame import digest
from protocol.messages import BlobRef
from protocol.tasks.task import Task
from runtime.text import first_few

log = structlog.get_logger(__name__)

UNSERVED: Final = "unserved"
"""The key of the table ``meta``: routes that the last export left without a bundle, as JSON."""
_MAX_NAMES: Final = 4
_MAX_KINDS: Final = 4096


@dataclass(frozen=True, slots=True)
class ServingNeed:
    """What one device is to be served: ``blobs`` are names, sorted."""

    profile: Profile
    blobs: tuple[str, ...]

    @property
    def words(self) -> str:
        """What it reads and predicts."""
        profile = self.profile
        return f"{', '.join(profile.modalities)} -> {', '.join(profile.targets)}"

    @property
    def key(self) -> str:
        """The route as a key in the database."""
        return digest("\n".join(self.blobs).encode())


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """A serving route and its devices.

    Attributes:
        need: the same for all of them.
        devices: sorted.
    """

    need: ServingNeed
    devices: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key of its bundle."""
        return self.need.key

    def __str__(self) -> str:
        return f"{self.need.words}: {counted(self.devices)}"

    def as_json(self) -> dict[str, Any]:
        """The route as text, for the status command."""
        return {"route": self.need.words, "devices": len(self.devices), "words": str(self)}


class ReleaseBundle(Wire):
    """One bundle of a release; for a routed method the one of a route."""

    version: Count
    bundle: BlobRef
    metrics: dict[str, float] = Field(default_factory=dict)
    blobs: tuple[str, ...] = ()
    """The route; None if all devices run the same bundle."""
    modalities: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    devices: Count = 0
    base: str = ""

    @property
    def need(self) -> ServingNeed:
        """The route that it was made for."""
        return ServingNeed(Profile(self.modalities, self.targets), self.blobs)


def counted(devices: tuple[str, ...]) -> str:
    """The first devices, as text."""
    return f"{len(devices)} device{'' if len(devices) == 1 else 's'} ({first_few(devices, _MAX_NAMES)})"


def group_by_route(needs: Mapping[str, ServingNeed]) -> list[RouteGroup]:
    """The distinct routes: most devices first, then by their blobs."""
    found: dict[tuple[str, ...], list[str]] = {}
    for device in sorted(needs):
        found.setdefault(needs[device].blobs, []).append(device)
    made = [RouteGroup(needs[devices[0]], tuple(devices)) for devices in found.values()]
    return sorted(made, key=lambda one: (-len(one.devices), one.need.blobs))


def best_bundle(need: ServingNeed, there: Iterable[ReleaseBundle]) -> ReleaseBundle | None:
    """The bundle for a device: the newest that reads and predicts the same, preferably of its own route."""
    wanted = need.profile.modalities, need.profile.targets
    fit = [one for one in there if (one.modalities, one.targets) == wanted]
    return max(
        fit,
        key=lambda one: (one.version, one.blobs == need.blobs, one.devices, one.bundle.digest),
        default=None,
    )


class ServingRoutes:
    """Reads each device's route. Synchronous, thread-safe."""

    def __init__(
        self,
        task: Task,
        server: RoutedServer,
        store: Database,
        roster: DeviceRegistry,
        barred: Callable[[str], Refused | None],
    ) -> None:
        self.task = task
        self._server = server
        self._store = store
        self._roster = roster
        self._barred = barred

    def all(self) -> dict[str, ServingNeed]:
        """Of every registered device that is not barred, and reads and predicts something of the task."""
        table = schema.messages
        said = {row["device"]: row["extra"] for row in self._store.rows(sa.select(table))}
        found = {device: self._need(device, said.get(device)) for device in self._roster.names()}
        return {device: need for device, need in found.items() if need is not None}

    def one(self, device: str) -> ServingNeed | None:
        """Of one device."""
        table = schema.messages
        rows = self._store.rows(sa.select(table.c.extra).where(table.c.device == device))
        return self._need(device, rows[0]["extra"] if rows else None)

    def _need(self, device: str, extra: Mapping[str, Any] | None) -> ServingNeed | None:
        known = self._roster.get(device)
        if known is None or self._barred(device) is not None:
            return None
        profile = profile_of(self.task, known.state)
        if not profile.modalities or not profile.targets:
            return None
        try:
            return ServingNeed(profile, self._server.serving_route(self.task, profile, extra))
        except Refused as refused:  # it was valid when it came: another release wrote it, or it is damaged
            log.warning("message_unreadable", device=device, why=str(refused))
        return ServingNeed(profile, self._server.serving_route(self.task, profile, None))


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
