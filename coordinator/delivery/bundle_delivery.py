"""Delivery of bundles: stored as blobs, announced by pointers over MQTT, pulled by the devices.

The decisions are a :class:`~coordinator.rollout.model.RolloutState`. Without rollouts its stable release is
the newest export. With one bundle for all, ``b/model`` names the stable release, and the ``down/model`` of a
stage's devices the candidate. If the method is routed, each device has a ``down/model`` of its own, and
``b/model`` is not used. All pointers are retained, and carry the serial of the decision behind them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

import structlog

from coordinator.delivery.exporters import FleetExporter, RouteExporter
from coordinator.delivery.pointers import Decision, decision_of, pointer_of, stable_pointer, targets
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.routes import RouteGroup, ServingNeed, best_bundle, group_by_route
from coordinator.fleet.serving_routes import ServingRoutes
from coordinator.messaging.sender import Sender
from coordinator.objects.blobs import BlobStorage
from coordinator.rollout import releases
from coordinator.rollout.model import Release, RolloutState, StableRelease
from coordinator.rollout.recorder import RolloutRecorder
from coordinator.storage.database import Database
from coordinator.trust.signer import PointerSigner
from coordinator.workers.jobs import ExportLineage, Jobs
from models.contract import Blobs
from protocol.errors import LichenError, Transient
from protocol.messages import ModelPointer
from protocol.topics import Kind
from runtime.clock import Clock

log = structlog.get_logger(__name__)

_MAX_CONCURRENT_SENDS: Final = 32
_RESEND_INTERVAL_S: Final = 60.0
"""Shortest interval in which a device that does not run its bundle is sent the same pointer again."""


@dataclass(eq=False, repr=False)
class BundleDelivery:
    """Exports bundles of a version, and sends each device the pointer to its own.

    Args:
        exporter: makes the bundles: one for all, or one for each route.
        rollouts: decides what devices run; None: the newest export.
        task: its name.
        store: the tables of bundles.
        blobs: the stored bundles.
        state_dir: with the bundles that the operator brought.
        recent: exports that stay for the operator to choose from.
        post: sends to devices.
        roster: the devices.
        clock: the time.
        pointer_signer: signs pointers.
    """

    exporter: FleetExporter | RouteExporter
    rollouts: RolloutRecorder | None
    task: str
    store: Database
    blobs: BlobStorage
    state_dir: Path
    recent: int
    post: Sender
    roster: DeviceRegistry
    clock: Clock
    pointer_signer: PointerSigner

    def __post_init__(self) -> None:
        self._routes = self.exporter.routes
        self._pointed: dict[str, tuple[Decision, float]] = {}
        """Device -> the decision sent to it last, and when."""
        self._announced: RolloutState | None = None
        """Without rollouts: the decisions at the last announcement."""
        self._missing: set[str] = set()
        self._announcing = asyncio.Lock()
        """One announcement at a time: an older decision never replaces a later one at the broker."""

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> None:
        """Make and store the missing bundles of a version.

        With rollouts, the bundles that could be made are a release, unless the others may be made later.

        Raises:
            LichenError, OSError: not all bundles could be made; those that were are stored.
        """
        failed = await self.exporter.export(jobs, state, lineage)
        if failed is not None:
            await self.announce()
        if not isinstance(failed, Transient):
            await asyncio.to_thread(self._note)
        if failed is not None:
            raise failed

    def _note(self) -> None:
        release = releases.newest(self.store)
        if self.rollouts is not None and release is not None:
            self.rollouts.note(release)

    def _decided(self) -> RolloutState:
        """The decisions so far."""
        if self.rollouts is not None:
            return self.rollouts.course()
        release = releases.newest(self.store)
        return RolloutState(stable=None if release is None else StableRelease(release=release, serial=0))

    def ensure_bundles(self, course: RolloutState) -> None:
        """Store the bundles that the operator brought as blobs. Blocks for a disk."""
        for name in sorted({name for release in course.running for name in release.digests}):
            if not self.blobs.has(name):
                data = releases.brought(self.state_dir, name)
                if data is not None:
                    self.blobs.put(data)
                elif name not in self._missing:
                    self._missing.add(name)
                    log.error("bundle_gone", digest=name)

    def retained_digests(self) -> tuple[str, ...]:
        """Digests of blobs to retain: those that may be needed, and the last exports."""
        wanted = list(self._decided().named)
        if self.rollouts is not None:
            newest = releases.newest(self.store)
            wanted += [*releases.exports(self.store, self.recent), *([] if newest is None else [newest])]
        return (
            *sorted({name for release in wanted for name in release.digests}),
            *self.pointer_signer.kept(),
        )

    def fits(self, release: Release) -> Callable[[str], bool]:
        """For a release: whether it has a bundle for a device. Blocks for a disk."""
        if self._routes is None:
            return lambda _device: True
        needs = self._routes.all()

        def fits(device: str) -> bool:
            need = needs.get(device)
            return need is not None and best_bundle(need, release.pieces) is not None

        return fits

    def lacking(self) -> list[RouteGroup]:
        """Routes of devices without a bundle, those of most devices first. Blocks for a disk.

        Empty before the first export: all devices wait for it.
        """
        there = [piece for release in self._decided().running for piece in release.pieces]
        if not there or self._routes is None:
            return []
        routes = group_by_route(self._routes.all())
        return [route for route in routes if best_bundle(route.need, there) is None]

    async def announce(self, *, again: bool = False) -> bool:
        """Publish which bundles devices should run.

        Args:
            again: also what was published before, to online devices: the broker may have lost it.

        Returns:
            Whether there is nothing left to announce; False: try again, at the next connect at the latest.
        """
        async with self._announcing:
            try:
                return await self._announce(again=again)
            except (LichenError, OSError) as error:
                log.warning("model_not_announced", why=str(error))
                return False

    async def _announce(self, *, again: bool) -> bool:
        course = await asyncio.to_thread(self._ready)
        needs = await asyncio.to_thread(self._needs, course)
        over = course.rollout if course.open is None else None
        if over is not None and over.cleared:
            over = None
        if self._routes is None:
            if course.stable is not None:
                stable = course.stable
                pointer = stable_pointer(self.task, stable)
                await self.post.broadcast(Kind.FLEET_MODEL, await self._signed(course, pointer))
            members = () if over is None else over.members
            # A rollout may end, and the next one begin, between two announcements.
            await self._take_back(sorted((self._pointed.keys() | set(members)) - needs.keys()))
        else:
            self._forget_gone(again=again)
        # In a thread: to choose a bundle for each of 5,000 devices takes half a second.
        if not await self._send(course, await asyncio.to_thread(self._news, course, needs, again=again)):
            return False
        if over is not None and self.rollouts is not None:
            await asyncio.to_thread(self.rollouts.clear, over)
        return True

    def _ready(self) -> RolloutState:
        course = self._announced = self._decided()
        if self.rollouts is not None:
            self.ensure_bundles(course)
        return course

    def _needs(self, course: RolloutState) -> Mapping[str, ServingNeed | None]:
        """The devices that have a pointer of their own; None: there is one bundle for all."""
        if self._routes is None:
            return {} if course.open is None else dict.fromkeys(course.open.members)
        return self._routes.all() if course.running else {}

    def _forget_gone(self, *, again: bool) -> None:
        """Forget what was sent to devices that are not registered any more; ``again``: to all devices."""
        for device in [one for one in self._pointed if again or one not in self.roster]:
            del self._pointed[device]

    def _news(
        self, course: RolloutState, needs: Mapping[str, ServingNeed | None], *, again: bool
    ) -> list[tuple[str, ModelPointer]]:
        """Pointers that have not been sent yet; ``again``: those of all online devices. For a thread."""
        online = set(self.roster.online()) if again else set()
        if again and self._routes is not None:  # the other devices get theirs when they come online
            needs = {device: need for device, need in needs.items() if device in online}
        return [
            (device, pointer)
            for device, need in needs.items()
            if (pointer := pointer_of(self.task, course, device, need)) is not None
            and (device in online or self._pointed.get(device, (None, 0.0))[0] != decision_of(pointer))
        ]

    async def _send(self, course: RolloutState, pointers: Sequence[tuple[str, ModelPointer]]) -> bool:
        for start in range(0, len(pointers), _MAX_CONCURRENT_SENDS):
            group = pointers[start : start + _MAX_CONCURRENT_SENDS]
            if not all(await asyncio.gather(*(self._send_one(course, *one) for one in group))):
                return False
        return True

    async def _send_one(self, course: RolloutState, device: str, pointer: ModelPointer) -> bool:
        try:
            await self.post.to_device(device, Kind.MODEL, await self._signed(course, pointer, device))
        except LichenError as error:
            log.warning("model_not_announced", device=device, version=pointer.version, why=str(error))
            return False
        self._pointed[device] = (decision_of(pointer), self.clock.now())
        return True

    async def _take_back(self, names: Sequence[str]) -> None:
        """Clear the devices' own pointers."""
        for start in range(0, len(names), _MAX_CONCURRENT_SENDS):
            group = names[start : start + _MAX_CONCURRENT_SENDS]
            await asyncio.gather(*(self.post.clear(name, Kind.MODEL) for name in group))
            for name in group:
                self._pointed.pop(name, None)

    async def pointer_for(self, device: str, *, reconnected: bool) -> ModelPointer | None:
        """The pointer for a device that has just sent its state; None: it needs none.

        Args:
            device: its name.
            reconnected: it was offline before.

        Raises:
            LichenError, OSError: it cannot be read or signed.
        """
        known, course = self.roster.get(device), await self._last_decided()
        if self._routes is None:
            pointer = self._of_stage(device, course)
        else:
            pointer = await asyncio.to_thread(self._of_route, self._routes, device, course)
        if known is None or pointer is None:
            return None
        wanted, now = decision_of(pointer), self.clock.now()
        decision, at = self._pointed.get(device, (wanted, -inf))
        runs = self._routes is not None and known.state.model == pointer.bundle.digest
        if decision == wanted and (runs or (not reconnected and now - at < _RESEND_INTERVAL_S)):
            return None
        if self.rollouts is not None:  # a bundle may have been brought since the last announcement
            await asyncio.to_thread(self.ensure_bundles, course)
        pointer = await self._signed(course, pointer, device)
        self._pointed[device] = (wanted, now)
        return pointer

    async def _last_decided(self) -> RolloutState:
        """The decisions as of the last pass, without a look at the tables; new ones are announced."""
        if self.rollouts is not None:
            return self.rollouts.last
        if self._announced is None and self._routes is not None:
            self._announced = await asyncio.to_thread(self._decided)
        return self._announced or RolloutState()

    def _of_route(self, routes: ServingRoutes, device: str, course: RolloutState) -> ModelPointer | None:
        """The pointer of a device with a route of its own. Reads one row."""
        need = routes.one(device) if course.running else None
        return None if need is None else pointer_of(self.task, course, device, need)

    def _of_stage(self, device: str, course: RolloutState) -> ModelPointer | None:
        """The pointer of a stage's device that has not answered yet; ``b/model`` is for the others."""
        member = None if course.open is None else course.open.members.get(device)
        if member is None or member.phase not in {"waiting", "trial"}:
            return None
        return pointer_of(self.task, course, device, None)

    async def _signed(
        self, course: RolloutState, pointer: ModelPointer, device: str | None = None
    ) -> ModelPointer:
        """The pointer with signatures of all bundles that may run."""
        return await asyncio.to_thread(
            lambda: self.pointer_signer.vouched(pointer, targets(self.task, course.running), device)
        )
