"""Which bundle a device of a routed method is offered: of the stable release, or of the candidate."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from coordinator.fleet.serving_routes import RouteBundle, ServingNeed, best_bundle, served
from coordinator.rollout.model import RolloutDevice, RolloutState
from coordinator.rollout.releases import routes
from coordinator.storage.database import Database
from protocol.messages import BlobRef, ModelPointer
from protocol.rollout import Trial


@dataclass(frozen=True)
class BundleCatalog:
    """All that devices may be pointed at now. ``serial`` and ``trial`` as in ``ModelPointer``."""

    stable: tuple[RouteBundle, ...]
    serial: int = 0
    trial: Trial | None = None
    candidate: tuple[RouteBundle, ...] = ()
    candidate_trial: Trial | None = None
    members: Mapping[str, RolloutDevice] = field(default_factory=dict)
    """Devices that are offered the candidate."""

    def __bool__(self) -> bool:
        return bool(self.stable or self.candidate)

    def __iter__(self) -> Iterator[RouteBundle]:
        yield from self.stable
        yield from self.candidate

    @classmethod
    def exported(cls, store: Database) -> "BundleCatalog":
        """Without rollouts: the newest bundle of each route."""
        return cls(served(store))

    @classmethod
    def decided(cls, course: Callable[[], RolloutState]) -> "BundleCatalog":
        """As ``course`` gives it now."""
        return cls.of(course())

    @classmethod
    def of(cls, course: RolloutState) -> "BundleCatalog":
        """As it was decided."""
        stable, rollout = course.stable, course.open
        found = cls(()) if stable is None else cls(routes(stable.release), stable.serial, stable.trial)
        if rollout is None:
            return found
        return cls(
            found.stable,
            found.serial,
            found.trial,
            routes(rollout.release),
            rollout.plan.trial,
            rollout.members,
        )

    def pointer(self, task: str, device: str, need: ServingNeed) -> ModelPointer | None:
        """What a device should run; None where there is nothing for it."""
        member = self.members.get(device)
        one = None if member is None else best_bundle(need, self.candidate)
        serial, trial = (0, None) if member is None else (member.serial, self.candidate_trial)
        if one is None:
            one, serial, trial = best_bundle(need, self.stable), self.serial, self.trial
        if one is None:
            return None
        return ModelPointer(
            task=task,
            version=one.version,
            bundle=BlobRef(digest=one.digest, size=one.size),
            metrics=dict(one.metrics),
            serial=serial,
            trial=trial,
        )
