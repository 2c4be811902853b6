"""Applies events to the store of rollouts, and logs the result.

The state without the loop (:mod:`coordinator.delivery.rollout_service`): decisions are read here.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.rollout import RolloutSettings
from coordinator.fleet.device_registry import Device
from coordinator.rollout import releases
from coordinator.rollout.blocked_devices import in_rollout
from coordinator.rollout.device_record import RolloutDevice
from coordinator.rollout.model import (
    Begun,
    Cleared,
    Command,
    Event,
    Exported,
    Point,
    Promote,
    Release,
    Rollout,
    RolloutPhase,
    RolloutState,
    Say,
)
from coordinator.rollout.store import ROLLOUTS, RolloutStore
from coordinator.rollout.view import waits
from coordinator.storage.database import Database
from coordinator.storage.engines.shared_tables import SharedFence
from runtime.clock import Clock
from runtime.metrics import MetricFamily, gauge

log = structlog.get_logger(__name__)


class RolloutRecorder:
    """The daemon's access to the store of rollouts. Synchronous; all but ``last`` blocks for a disk.

    Args:
        settings: ``[rollout]``.
        state_dir: with the bundles that the operator brought.
        book: open; :meth:`close` closes it.
        clock: the time.
    """

    def __init__(self, settings: RolloutSettings, state_dir: Path, book: RolloutStore, clock: Clock) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self.book = book
        self._clock = clock
        self._zero = clock.wall() - clock.now()
        """Monotonic from the wall clock at the start: setting that clock moves no deadline."""

    def begin(self, announced: Release | None) -> None:
        """The daemon has started.

        Args:
            announced: the pointer of all devices before the first rollout.
        """
        self._log(self.book.play(Begun(mode=self._settings.mode, release=announced), self._now())[2])
        releases.tidy(self._state_dir, self.course(), self._now())

    def _now(self) -> float:
        """Unix seconds."""
        return self._zero + self._clock.now()

    def course(self) -> RolloutState:
        """All decisions so far, by the daemon or by ``lichen rollout``."""
        return self.book.course()

    @property
    def last(self) -> RolloutState:
        """The same as of the last pass, at most a second old; for the event loop."""
        return self.book.last

    def waiting_for(self, get: Callable[[str], Device | None]) -> str:
        """What a rollout waits for; empty if none does.

        Args:
            get: the entry of a device.
        """
        course = self.last
        return "; ".join(wait.why for wait in waits(course, in_rollout(course, get)))

    @property
    def busy(self) -> bool:
        """Whether a rollout goes on, or is about to, by itself."""
        course = self.last
        return course.phase is RolloutPhase.OPEN or (course.open is None and course.waiting is not None)

    def note(self, release: Release) -> None:
        """A version was exported.

        Raises:
            Transient: the disk is full.
        """
        self.play(Exported(release=release, mode=self._settings.mode, plan=self._settings.plan))

    def clear(self, rollout: Rollout) -> None:
        """No device has a pointer of that rollout any more."""
        self.play(Cleared(number=rollout.number))

    def play(self, event: Event) -> None:
        """Apply an event and store the result.

        Raises:
            Transient: the disk is full; nothing was decided.
        """
        before, after, commands = self.book.play(event, self._now())
        self._log(commands)
        if after.open is None and before.open is not None:
            releases.tidy(self._state_dir, after, self._now())

    def _log(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Say():
                    (log.warning if command.trouble else log.info)(command.what, why=command.words)
                case Point():
                    log.info("rollout_points", devices=len(command.devices))
                case Promote():
                    log.info("rollout_all", serial=self.book.course().serial)

    def close(self) -> None:
        """Close the store."""
        self.book.close()

    def metrics(self) -> Iterable[MetricFamily]:
        """Metrics of the last rollout."""
        course = self.last
        yield gauge("lichen_rollout_number", "The last rollout", course.number)
        yield gauge("lichen_rollout_serial", "The last decision on what devices run", course.serial)
        yield gauge("lichen_rollout_open", "Whether one goes on or is paused", course.open is not None)
        yield gauge("lichen_rollout_paused", "Whether one is paused", course.phase is RolloutPhase.PAUSED)
        waiting = course.waiting is not None
        yield gauge("lichen_rollout_waiting", "Whether a version waits for its turn", waiting)
        yield gauge("lichen_rollout_versions_failed", "Versions that failed", len(course.failed))
        if course.rollout is None:
            return
        yield gauge("lichen_rollout_stage", "Its stage; 0 is the canary's", course.rollout.stage)
        members = course.rollout.members.values()
        phases = get_args(RolloutDevice.model_fields["phase"].annotation)
        values = [((phase,), float(sum(one.phase == phase for one in members))) for phase in phases]
        words = "Its devices by what they say of the version"
        yield MetricFamily("lichen_rollout_devices", words, "gauge", values, ("phase",))


def open_rollouts(
    settings: CoordinatorSettings, store: Database, clock: Clock, fence: SharedFence | None = None
) -> RolloutRecorder | None:
    """Open the store of rollouts; None if there is nothing to decide: each export goes to all at once.

    Args:
        settings: where and how.
        store: the coordinator's own tables.
        clock: the time.
        fence: as of :class:`coordinator.rollout.store.RolloutStore`.

    Raises:
        Misconfigured: the store cannot be read.
        Transient: the disk is full.
    """
    state_dir, mode, before = settings.state_dir, settings.rollout.mode, store.get_meta(releases.BEGUN)
    # Serials must keep increasing even if the store was lost: to devices a 0 is stale.
    if mode == "newest" and before is None and not settings.location.has(ROLLOUTS):
        return None
    recorder = RolloutRecorder(settings.rollout, state_dir, RolloutStore(settings.location, fence), clock)
    try:
        recorder.begin(releases.announced(store, mode))
        if before is None:
            store.put_meta({releases.BEGUN: str(clock.wall())})
        elif recorder.last.serial == 0:
            log.warning("rollout_book_new", why="devices keep what they run until the next rollout")
    except BaseException:
        recorder.close()
        raise
    return recorder
