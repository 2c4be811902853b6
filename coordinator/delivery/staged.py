"""The deployment where versions go out in stages: wraps the one that makes the bundles.

Where all devices run the same, ``b/model`` names the stable release, and the ``down/model`` of a stage's
devices the candidate. Where each device has a pointer of its own (a routed method), that names one or the
other. Both are retained, and carry the serial of the decision that they come from.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog

from coordinator.delivery.fleet_bundle import FleetBundle
from coordinator.delivery.route_bundles import RouteBundles, RoutesFailed
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.serving_routes import RouteGroup, best_bundle, served
from coordinator.messaging.sender import Sender
from coordinator.rollout import releases
from coordinator.rollout.model import Release, ReleaseBundle, Rollout, RolloutDevice, RolloutState
from coordinator.rollout.recorder import RolloutRecorder
from coordinator.storage.database import Database
from coordinator.trust.repository import BundleTarget
from coordinator.trust.signer import PointerSigner
from coordinator.workers.jobs import ExportLineage, Jobs
from models.contract import Blobs
from protocol.errors import LichenError
from protocol.messages import ModelPointer
from protocol.rollout import Trial
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.storage.blob_store import BlobStore

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 32
_AGAIN_S: Final = 60.0
"""A device that has not answered its pointer and says its state is told again so often at most."""


class StagedBundles:
    """The bundles of releases, among the coordinator's blobs."""

    def __init__(self, store: Database, blobs: BlobStore, state_dir: Path, recent: int) -> None:
        self._store = store
        self._blobs = blobs
        self._state_dir = state_dir
        self._recent = recent
        self._gone: set[str] = set()

    def ensure(self, course: RolloutState) -> None:
        """Put those here that the operator brought; blocks for a disk."""
        for name in sorted({name for release in course.running for name in release.digests}):
            if not self._blobs.has(name):
                data = releases.brought(self._state_dir, name)
                if data is not None:
                    self._blobs.put(data)
                elif name not in self._gone:
                    self._gone.add(name)
                    log.error("bundle_gone", digest=name)

    def kept(self, course: RolloutState) -> set[str]:
        """Digests that stay: what may be needed, and the last exports, for the operator to choose from."""
        found = [*course.named, *releases.exports(self._store, self._recent)]
        return {name for release in found for name in release.digests}


class StagedDeployment:
    """See :class:`coordinator.delivery.fleet_bundle.BundleDelivery`: where all devices run the same.

    Args:
        inner: makes the bundles.
        rollouts: decides.
        bundles: where they are.
        post: to the devices.
        roster: who is here.
        task: its name.
        clock: the time.
        vouching: who signs.
    """

    def __init__(
        self,
        inner: FleetBundle,
        rollouts: RolloutRecorder,
        bundles: StagedBundles,
        *,
        post: Sender,
        roster: DeviceRegistry,
        task: str,
        clock: Clock,
        vouching: PointerSigner,
    ) -> None:
        self._inner = inner
        self._rollouts = rollouts
        self._bundles = bundles
        self._post = post
        self._roster = roster
        self._task = task
        self._clock = clock
        self._vouching = vouching
        self._said: dict[str, tuple[int, float]] = {}
        """Device -> the serial that it was told last, and when."""
        self._one = asyncio.Lock()
        """One announcement at a time: an older decision never takes a later one's place at the broker."""

    def fits(self, _release: Release) -> Callable[[str], bool]:
        """See :class:`coordinator.delivery.rollout_service.ReleaseDelivery`: there is one bundle for all."""
        return lambda _device: True

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> None:
        """See :class:`Deploying`; what became of it is the rollout's."""
        await self._inner.export(jobs, state, lineage)
        await asyncio.to_thread(self._note)

    def _note(self) -> None:
        pointer = self._inner.pointer()
        if pointer is not None:
            piece = ReleaseBundle(
                version=pointer.version, bundle=pointer.bundle, metrics=dict(pointer.metrics)
            )
            self._rollouts.note(Release(version=pointer.version, pieces=(piece,)))

    def kept(self) -> tuple[str, ...]:
        """See :class:`Deploying`."""
        return (*sorted(self._bundles.kept(self._rollouts.course())), *self._vouching.kept())

    async def announce(self, *, again: bool = False) -> bool:
        """See :class:`Deploying`."""
        async with self._one:
            return await self._announce(again=again)

    async def _announce(self, *, again: bool) -> bool:
        try:
            course = await asyncio.to_thread(self._ready)
            if course.stable is not None:
                stable = course.stable
                pointer = self._pointer(stable.release, stable.serial, stable.trial)
                pointer = await asyncio.to_thread(self._vouched, course, pointer)
                await self._post.broadcast(Kind.FLEET_MODEL, pointer)
            if course.open is not None:
                return await self._point(course, course.open, again=again)
            return course.rollout is None or course.rollout.cleared or await self._clear(course.rollout)
        except (LichenError, OSError) as error:
            log.warning("model_not_announced", why=str(error))
            return False

    def _ready(self) -> RolloutState:
        course = self._rollouts.course()
        self._bundles.ensure(course)
        return course

    async def _point(self, course: RolloutState, rollout: Rollout, *, again: bool) -> bool:
        """The stages' devices that were not told yet; ``again``: all that are here."""
        # The rollout before was ended, and this one begun, between two looks at the book.
        await self._take_back(sorted(self._said.keys() - rollout.members.keys()))
        online = set(self._roster.online()) if again else set()
        told = [
            (name, one)
            for name, one in rollout.members.items()
            if self._said.get(name, (-1, 0.0))[0] != one.serial or name in online
        ]
        for start in range(0, len(told), _AT_ONCE):
            group = told[start : start + _AT_ONCE]
            if not all(await asyncio.gather(*(self._tell(course, rollout, *one) for one in group))):
                return False
        return True

    async def _tell(self, course: RolloutState, rollout: Rollout, device: str, member: RolloutDevice) -> bool:
        pointer = self._pointer(rollout.release, member.serial, rollout.plan.trial)
        try:
            pointer = await asyncio.to_thread(self._vouched, course, pointer, device)
            await self._post.to_device(device, Kind.MODEL, pointer)
        except LichenError as error:
            log.warning("model_not_announced", device=device, version=pointer.version, why=str(error))
            return False
        self._said[device] = (member.serial, self._clock.now())
        return True

    async def _clear(self, rollout: Rollout) -> bool:
        """The rollout is over: ``b/model`` speaks to all."""
        await self._take_back(sorted(self._said.keys() | rollout.members.keys()))
        await asyncio.to_thread(self._rollouts.clear, rollout)
        return True

    async def _take_back(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), _AT_ONCE):
            group = names[start : start + _AT_ONCE]
            await asyncio.gather(*(self._post.clear(name, Kind.MODEL) for name in group))
            for name in group:
                self._said.pop(name, None)

    async def pointer_for(self, device: str, *, came: bool) -> ModelPointer | None:
        """Of a stage's device that has not answered yet; see :class:`Deploying`."""
        course = self._rollouts.last
        rollout = course.open
        member = None if rollout is None else rollout.members.get(device)
        if rollout is None or member is None or member.phase not in {"waiting", "trial"}:
            return None
        now = self._clock.now()
        serial, at = self._said.get(device, (-1, -_AGAIN_S))
        lately = serial == member.serial and now - at < _AGAIN_S
        if lately and not came:
            return None
        pointer = self._pointer(rollout.release, member.serial, rollout.plan.trial)
        # It may have come between the decision and its announcement.
        await asyncio.to_thread(self._bundles.ensure, course)
        pointer = await asyncio.to_thread(self._vouched, course, pointer, device)
        self._said[device] = (member.serial, now)
        return pointer

    def _pointer(self, release: Release, serial: int, trial: Trial | None) -> ModelPointer:
        piece = release.pieces[0]
        return ModelPointer(
            task=self._task,
            version=piece.version,
            bundle=piece.bundle,
            metrics=piece.metrics,
            serial=serial,
            trial=trial,
        )

    def _vouched(
        self, course: RolloutState, pointer: ModelPointer, device: str | None = None
    ) -> ModelPointer:
        """With what vouches for all that may run."""
        return self._vouching.vouched(pointer, _signed(self._task, course.running), device)


def _signed(task: str, running: Iterable[Release]) -> list[BundleTarget]:
    """Each once, in an order that does not depend on who is asked."""
    found = {
        (piece.version, piece.bundle.digest): BundleTarget(task=task, version=piece.version, ref=piece.bundle)
        for release in running
        for piece in release.pieces
    }
    return [found[key] for key in sorted(found)]


class StagedRoutes:
    """See :class:`coordinator.delivery.fleet_bundle.BundleDelivery`: of a routed method.

    Args:
        inner: makes the bundles, and points each device at the one for it.
        rollouts: decides.
        bundles: where they are.
        store: where the bundles by route are.
    """

    def __init__(
        self, inner: RouteBundles, rollouts: RolloutRecorder, bundles: StagedBundles, store: Database
    ) -> None:
        self._inner = inner
        self._rollouts = rollouts
        self._bundles = bundles
        self._store = store

    def fits(self, release: Release) -> Callable[[str], bool]:
        """See :class:`coordinator.delivery.rollout_service.ReleaseDelivery`."""
        needs, there = self._inner.needs.all(), releases.routes(release)

        def fits(device: str) -> bool:
            need = needs.get(device)
            return need is not None and best_bundle(need, there) is not None

        return fits

    async def export(self, jobs: Jobs, state: Blobs, lineage: ExportLineage) -> None:
        """See :class:`Deploying`. Where some routes cannot have a bundle, the others' are a release."""
        try:
            await self._inner.export(jobs, state, lineage)
        except RoutesFailed:
            await asyncio.to_thread(self._note)
            raise
        await asyncio.to_thread(self._note)

    def lacking(self) -> list[RouteGroup]:
        """Routes of devices for which no release has anything."""
        return self._inner.lacking()

    def _note(self) -> None:
        release = releases.by_route(served(self._store))
        if release is not None:
            self._rollouts.note(release)

    def kept(self) -> tuple[str, ...]:
        """See :class:`Deploying`."""
        return (*sorted(self._bundles.kept(self._rollouts.course())), *self._inner.kept())

    async def announce(self, *, again: bool = False) -> bool:
        """See :class:`Deploying`."""
        try:
            course = await asyncio.to_thread(self._rollouts.course)
            await asyncio.to_thread(self._bundles.ensure, course)
            said = await self._inner.announce(again=again)
            if said and course.rollout is not None and course.open is None and not course.rollout.cleared:
                await asyncio.to_thread(self._rollouts.clear, course.rollout)
        except (LichenError, OSError) as error:
            log.warning("model_not_announced", why=str(error))
            return False
        return said

    async def pointer_for(self, device: str, *, came: bool) -> ModelPointer | None:
        """See :class:`Deploying`."""
        return await self._inner.pointer_for(device, came=came)
