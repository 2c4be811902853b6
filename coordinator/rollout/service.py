"""Carries a rollout on: plays what the devices say at the machine, and has its decisions announced."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from coordinator.config.rollout import RolloutSettings
from coordinator.fleet.device_registry import Device, Roster
from coordinator.rollout.blocked_devices import in_rollout
from coordinator.rollout.model import (
    Begun,
    Cleared,
    Command,
    Course,
    Event,
    Exported,
    Heard,
    Phase,
    Point,
    Promote,
    Release,
    Rollout,
    Say,
    Tick,
)
from coordinator.rollout.plan import Fact
from coordinator.rollout.releases import tidy
from coordinator.rollout.store import FILE, Book
from coordinator.rollout.transitions import needs_fleet
from coordinator.status.rollout_view import waits
from protocol.errors import LichenError, Refused
from runtime.clock import Clock

log = structlog.get_logger(__name__)

TICK_S: Final = 1.0
_AGAIN_S: Final = 5.0
"""An announcement that failed is made again so often; and at each connect."""


class Rollouts:
    """One service, and what the deployment asks of the book.

    Args:
        settings: ``[rollout]``.
        state_dir: where the book is.
        roster: the devices.
        barred: who gets nothing.
        clock: the time.
        announced: what was announced before there was a book.
    """

    def __init__(
        self,
        settings: RolloutSettings,
        state_dir: Path,
        *,
        roster: Roster,
        barred: Callable[[str], Refused | None],
        clock: Clock,
        announced: Callable[[], Release | None],
    ) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._roster = roster
        self._barred = barred
        self._clock = clock
        self._zero = clock.wall() - clock.now()
        """Time goes on from the wall clock at the start: what sets that clock moves no deadline."""
        self.book = Book(state_dir)
        self.announce: Callable[[], Awaitable[bool]] = _nothing_to_say
        self.fits: Callable[[Release], Callable[[str], bool]] = lambda _: lambda _: True
        """Of a release: whether it has a bundle for a device."""
        self.ensure: Callable[[Course], None] = lambda _: None
        """Put the bundles that devices are pointed at where they can fetch them; blocks for a disk."""
        self.connected: Callable[[], bool] = lambda: True
        """Whether the broker is there; each connect announces what is so by then."""
        self.changed: Callable[[], None] = lambda: None
        """Something was decided, here or by ``lichen rollout``."""
        self._looked_at: tuple[int, dict[str, tuple[Device, bool]]] = (-1, {})
        """Of a rollout, what its devices said when it was looked last, and whether they were barred."""
        self._announced = -1
        self._again_at = 0.0
        try:
            self._say(self.book.play(Begun(mode=settings.mode, release=announced()), self.now())[2])
            tidy(state_dir, self.book.course(), self.now())
        except BaseException:
            self.book.close()
            raise

    @staticmethod
    def wanted(settings: RolloutSettings, state_dir: Path) -> bool:
        """Whether there is anything to decide: else each export goes to all at once, and no book is made."""
        return settings.mode != "newest" or (state_dir / FILE).is_file()

    def now(self) -> float:
        """Unix seconds."""
        return self._zero + self._clock.now()

    def course(self) -> Course:
        """All that was decided so far."""
        return self.book.course()

    @property
    def last(self) -> Course:
        """The same as of the last look, a second ago at most; for the event loop."""
        return self.book.last

    @property
    def waiting_for(self) -> str:
        """What a rollout waits for, in words; empty where none does."""
        course = self.last
        return "; ".join(wait.why for wait in waits(course, in_rollout(course, self._roster.get)))

    @property
    def busy(self) -> bool:
        """Whether a rollout goes on, or is about to, by itself."""
        course = self.last
        return course.phase is Phase.OPEN or (course.open is None and course.waiting is not None)

    def note(self, release: Release) -> None:
        """A version was exported; blocks for a disk.

        Raises:
            Transient: the disk is full.
        """
        plan = self._settings.plan
        self._play(Exported(release=release, mode=self._settings.mode, plan=plan))

    def clear(self, rollout: Rollout) -> None:
        """Nobody has a pointer of that rollout any more; blocks for a disk."""
        self._play(Cleared(number=rollout.number))

    async def run(self) -> None:
        """Go on, for ever."""
        while True:
            try:
                await self.turn()
            except (LichenError, OSError) as error:
                log.warning("rollout_not_carried_on", why=str(error))
            await self._clock.sleep(TICK_S)

    async def turn(self) -> None:
        """Look once at what the devices say, and announce what was decided here or by ``lichen rollout``."""
        course = await asyncio.to_thread(self.course)
        if course.open is not None or course.waiting is not None:
            await asyncio.to_thread(self._look, course)
            course = await asyncio.to_thread(self.course)
        # Blobs may be collected by who looked before the book named them.
        await asyncio.to_thread(self.ensure, course)
        over = course.rollout is not None and course.open is None and not course.rollout.cleared
        if (course.serial == self._announced and not over) or self._clock.now() < self._again_at:
            return
        if not self.connected():
            return
        serial = course.serial
        self.changed()
        if await self.announce():
            self._announced = serial
        else:
            self._again_at = self._clock.now() + _AGAIN_S

    def _play(self, event: Event) -> None:
        before, after, commands = self.book.play(event, self.now())
        self._say(commands)
        if after.open is None and before.open is not None:
            tidy(self._state_dir, after, self.now())

    def _look(self, course: Course) -> None:
        """Play the time, and of a rollout's devices those that said something since the last look."""
        rollout = course.open
        if course.number != self._looked_at[0]:
            self._looked_at = (course.number, {})
        known = self._looked_at[1]
        members = () if rollout is None else rollout.members.keys()
        news = {}
        for name in members:
            one, barred, before = self._roster.get(name), self._barred(name) is not None, known.get(name)
            if one is not None and (before is None or before[0] is not one or before[1] != barred):
                news[name] = one, barred
        heard = {name: _heard(one, barred=barred) for name, (one, barred) in news.items()}
        self._play(Tick(heard=heard, fleet=self._fleet(course, rollout)))
        known.update(news)

    def _fleet(self, course: Course, rollout: Rollout | None) -> dict[str, Fact] | None:
        """Every device that may get the candidate, where a stage is to be filled.

        Those that run models: others may have the role, and no ONNX Runtime. Before the first version of all
        nobody does: those with the role ``observe``.
        """
        if rollout is None or not needs_fleet(rollout):
            return None
        fits = self.fits(rollout.release)
        devices = {
            name: one
            for name in self._roster.names()
            if (one := self._roster.get(name)) is not None and self._barred(name) is None and fits(name)
        }
        running = {name: one for name, one in devices.items() if _runs(one)}
        observing = {name: one for name, one in devices.items() if "observe" in one.state.roles}
        able = running if running and course.stable is not None else {**observing, **running}
        return {name: _fact(one) for name, one in able.items()}

    def _say(self, commands: Iterable[Command]) -> None:
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


async def _nothing_to_say() -> bool:
    return True


def _heard(device: Device, *, barred: bool) -> Heard:
    state = device.state
    return Heard(online=device.online, model=state.model, trial=state.trial, barred=barred)


def _runs(device: Device) -> bool:
    return device.state.model is not None or device.state.trial is not None


def _fact(device: Device) -> Fact:
    return Fact(online=device.online, labels=dict(device.state.labels or {}))
