"""Model pointers: which bundle a device is to run, as decided."""

from collections.abc import Iterable

from coordinator.fleet.routes import ReleaseBundle, ServingNeed, best_bundle
from coordinator.rollout.model import Release, RolloutState, StableRelease
from coordinator.trust.repository import BundleTarget
from protocol.messages import ModelPointer
from protocol.rollout import Trial

Decision = tuple[str, int]
"""Digest and serial: distinguishes two pointers of one device."""


def decision_of(pointer: ModelPointer) -> Decision:
    """The decision that a pointer carries."""
    return pointer.bundle.digest, pointer.serial


def stable_pointer(task: str, stable: StableRelease) -> ModelPointer:
    """The pointer to the stable release, if all devices share one bundle."""
    return _pointer(task, stable.release.pieces[0], stable.serial, stable.trial)


def pointer_of(task: str, course: RolloutState, device: str, need: ServingNeed | None) -> ModelPointer | None:
    """The candidate if the device is in a stage and there is a bundle for it, else the stable release.

    Args:
        task: its name.
        course: the decisions.
        device: its name.
        need: its route; None: all devices share one bundle.
    """
    rollout, stable = course.open, course.stable
    member = None if rollout is None else rollout.members.get(device)
    if rollout is not None and member is not None:
        bundle = _choose(need, rollout.release)
        if bundle is not None:
            return _pointer(task, bundle, member.serial, rollout.plan.trial)
    bundle = None if stable is None else _choose(need, stable.release)
    if stable is None or bundle is None:
        return None
    return _pointer(task, bundle, stable.serial, stable.trial)


def targets(task: str, running: Iterable[Release]) -> list[BundleTarget]:
    """Each bundle that may run, once, in an order that does not depend on the device."""
    found = {
        (piece.version, piece.bundle.digest): BundleTarget(task=task, version=piece.version, ref=piece.bundle)
        for release in running
        for piece in release.pieces
    }
    return [found[key] for key in sorted(found)]


def _choose(need: ServingNeed | None, release: Release) -> ReleaseBundle | None:
    return release.pieces[0] if need is None else best_bundle(need, release.pieces)


def _pointer(task: str, bundle: ReleaseBundle, serial: int, trial: Trial | None) -> ModelPointer:
    return ModelPointer(
        task=task,
        version=bundle.version,
        bundle=bundle.bundle,
        metrics=bundle.metrics,
        serial=serial,
        trial=trial,
    )
