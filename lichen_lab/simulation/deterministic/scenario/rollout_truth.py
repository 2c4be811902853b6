"""Invariants of rollouts, and what an outside observer has seen of them."""

from dataclasses import dataclass, field

from coordinator.rollout.model import Rollout, RolloutState
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Violation
from lichen_lab.simulation.deterministic.scenario.toy_models import is_bad
from protocol.messages import State


@dataclass
class RolloutTruth:
    """The decisions that were on disk before they were announced, and what devices did.

    Args:
        seed: of the world.
    """

    seed: int
    serial: int = 0
    """Of the last decision."""
    stable: set[str] = field(default_factory=set)
    """Digests that all devices were ever pointed at."""
    invited: dict[str, set[str]] = field(default_factory=dict)
    """Digest of a candidate -> devices that were ever in one of its stages."""
    kept: dict[str, set[str]] = field(default_factory=dict)
    """Digest -> devices that reported that they keep it."""
    unexplained: set[tuple[str, str]] = field(default_factory=set)
    """Device and digest: run while the coordinator was down, and not allowed by what was known."""
    ended: dict[int, str] = field(default_factory=dict)
    """Number of a rollout that is over -> its phase."""

    def decided(self, course: RolloutState) -> None:
        """The decisions as they are on disk now.

        Raises:
            Violation: one was forgotten, a stage began too early, or a failed release went to all.
        """
        if course.serial < self.serial:
            raise Violation(f"decision {self.serial} on what devices run was forgotten: now {course.serial}")
        self.serial = course.serial
        if course.stable is not None:
            self._announced_to_all(course)
        if course.rollout is not None:
            self._rollout(course.rollout)
        for device, digest in sorted(self.unexplained):
            self._require_allowed(device, digest)
        self.unexplained.clear()

    def _announced_to_all(self, course: RolloutState) -> None:
        assert course.stable is not None  # noqa: S101 - the caller has looked
        release = course.stable.release
        if release.key in {failed.key for failed in course.failed}:
            raise Violation(f"{release.words} failed, and is announced to all")
        for digest in release.digests:
            if digest not in self.stable and not self.kept.get(digest):
                raise Violation(f"{release.words} is announced to all, and no device has kept it")
            if is_bad(self.seed, release.version):
                raise Violation(f"{release.words} is bad, and is announced to all")
            self.stable.add(digest)

    def _rollout(self, rollout: Rollout) -> None:
        for digest in rollout.release.digests:
            self.invited.setdefault(digest, set()).update(rollout.members)
        earlier = {name for name, one in rollout.members.items() if one.stage < rollout.stage}
        kept = {name for digest in rollout.release.digests for name in self.kept.get(digest, ())}
        if rollout.stage and not earlier & kept:
            raise Violation(
                f"{rollout.stage_words} of {rollout.release.words} began, but none of {sorted(earlier)} "
                "kept it"
            )
        if rollout.over is not None:
            before = self.ended.setdefault(rollout.number, rollout.phase.value)
            if before != rollout.phase.value:
                raise Violation(f"rollout {rollout.number} was {before}, and is {rollout.phase.value} now")

    def runs(self, device: str, digest: str, *, known: bool) -> None:
        """A device activates a model.

        Args:
            device: its name.
            digest: of the bundle.
            known: :meth:`decided` was called just now; else it is judged at the next call.

        Raises:
            Violation: nobody ever pointed the device at it.
        """
        if known:
            self._require_allowed(device, digest)
        elif not self._is_allowed(device, digest):
            self.unexplained.add((device, digest))

    def reports(self, device: str, state: State) -> None:
        """A device sends its state."""
        if state.trial is not None and state.trial.phase == "committed":
            self.kept.setdefault(state.trial.bundle, set()).add(device)

    def _is_allowed(self, device: str, digest: str) -> bool:
        return digest in self.stable or device in self.invited.get(digest, ())

    def _require_allowed(self, device: str, digest: str) -> None:
        if not self._is_allowed(device, digest):
            raise Violation(f"{device} runs {digest[:8]}, and is in no stage of its rollout")
