"""What a coordinator knows and decides of rollouts: plays events at the book, and logs what comes of them.

The state without the loop (:mod:`coordinator.delivery.rollout_service`): what was decided is read here.
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
    RolloutDevice,
    RolloutPhase,
    RolloutState,
    Say,
)
from coordinator.rollout.store import FILE, RolloutStore
from coordinator.rollout.view import waits
from coordinator.storage.database import Database
from runtime.clock import Clock
from runtime.metrics import MetricFamily, gauge

log = structlog.get_logger(__name__)


class RolloutRecorder:
    """The book of rollouts, as the daemon writes it. Synchronous; all but ``last`` blocks for a disk.

    Args:
        settings: ``[rollout]``.
        state_dir: where the bundles are that the operator brought.
        book: open; :meth:`close` closes it.
        clock: the time.
    """

    def __init__(self, settings: RolloutSettings, state_dir: Path, book: RolloutStore, clock: Clock) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self.book = book
        self._clock = clock
        self._zero = clock.wall() - clock.now()
        """Time goes on from the wall clock at the start: what sets that clock moves no deadline."""

    def begin(self, announced: Release | None) -> None:
        """The daemon has started.

        Args:
            announced: what all devices were pointed at before there was a book.
        """
        self._log(self.book.play(Begun(mode=self._settings.mode, release=announced), self._now())[2])
        releases.tidy(self._state_dir, self.course(), self._now())

    def _now(self) -> float:
        """Unix seconds."""
        return self._zero + self._clock.now()

    def course(self) -> RolloutState:
        """All that was decided so far, here or by ``lichen rollout``."""
        return self.book.course()

    @property
    def last(self) -> RolloutState:
        """The same as of the last look, a second ago at most; for the event loop."""
        return self.book.last

    def waiting_for(self, get: Callable[[str], Device | None]) -> str:
        """What a rollout waits for, in words; empty where none does.

        Args:
            get: what is known of a device.
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
        """Nobody has a pointer of that rollout any more."""
        self.play(Cleared(number=rollout.number))

    def play(self, event: Event) -> None:
        """Write what comes of an event.

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
        """Let the book go."""
        self.book.close()

    def metrics(self) -> Iterable[MetricFamily]:
        """Of the last rollout."""
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


def open_rollouts(settings: CoordinatorSettings, store: Database, clock: Clock) -> RolloutRecorder | None:
    """Open the book of rollouts; None where there is nothing to decide: each export goes to all at once.

    Raises:
        Misconfigured: the book cannot be read.
        Transient: the disk is full.
    """
    state_dir, mode, before = settings.state_dir, settings.rollout.mode, store.get_meta(releases.BEGUN)
    # Who has counted decisions goes on counting, also where the book was lost: to devices a 0 is out of date.
    if mode == "newest" and before is None and not (state_dir / FILE).is_file():
        return None
    recorder = RolloutRecorder(settings.rollout, state_dir, RolloutStore(state_dir), clock)
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
