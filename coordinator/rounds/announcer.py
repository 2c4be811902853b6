"""What the coordinator says by itself: task, round, offers. Desired state is retained or said again."""

import asyncio
import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import structlog

from coordinator.delivery.fleet_bundle import Deploying
from coordinator.fleet.device_registry import Roster
from coordinator.messaging.sender import Post
from coordinator.messaging.traffic import Traffic
from coordinator.round_machine.closing import closes_at
from coordinator.round_machine.events import Phase
from coordinator.rounds.driver import Driver
from coordinator.rounds.offers import Offering
from coordinator.rounds.offline_announcement import STOPPED
from coordinator.rounds.task_announcer import TaskAnnouncer
from coordinator.storage.database import Store
from coordinator.storage.model_registry import Registry
from coordinator.trust.work_signer import WorkSigner
from coordinator.workers.encoder_models import Graphs
from protocol.errors import LichenError
from protocol.messages import RoundAnnouncement
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.storage.disk import DISK
from runtime.waits import Wait

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger(__name__)

_MIN_SPACING_S: Final = 0.5
"""Between two round announcements; what lies between is skipped, the last one is always said."""
_NAMES: Final = 64
"""Devices named in an announcement, which every onlooker gets at each change; of more, their number."""
_TASKLESS: Final = 500
REPEAT_S: Final = 30.0
"""The round is said again so often: the words hold durations, and silence means that nobody is there."""
_TASK_PAUSE_MOST_S: Final = 3600.0
_FAREWELL_S: Final = 2.0
_WORDS: Final = 1000
"""Characters in ``RoundAnnouncement.waiting_for``."""


class Announcer:
    """Implements ``rounds.driver.Listener``. :meth:`watch` comes before anything else."""

    def __init__(
        self,
        *,
        post: Post,
        store: Store,
        roster: Roster,
        registry: Registry,
        deployment: Deploying,
        traffic: Traffic,
        graphs: Graphs,
        signer: WorkSigner,
        clock: Clock,
        offer_every_s: float,
        repeat_s: float = REPEAT_S,
    ) -> None:
        self._post = post
        self._store = store
        self._registry = registry
        self._deployment = deployment
        self._traffic = traffic
        self._offering = Offering(post, roster, registry, graphs, signer)
        self._tasks = TaskAnnouncer(post, signer)
        self._clock = clock
        self._offer_every_s = offer_every_s
        self._repeat_s = repeat_s
        self._leaving = False
        self._taskless: set[str] = set()
        self._task_again = False
        self._task_said, self._task_pause_s = clock.now(), repeat_s
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._urgent: set[str] = set()
        self._driver: Driver
        self.rollout: Callable[[], str] = lambda: ""
        """What a rollout waits for, in words."""

    def watch(self, driver: Driver) -> None:
        """Say what this driver decides."""
        self._driver = driver

    def changed(self) -> None:
        """The round machine's state is another one."""
        self._changed.set()

    def offer(self, devices: tuple[str, ...]) -> None:
        """Offer the open round to these devices now."""
        self._urgent.update(devices)
        self._wanted.set()

    async def greet(self) -> None:
        """At every connect: all that is retained, said again.

        Raises:
            Transient: the broker is gone again.
        """
        self._task_pause_s = self._repeat_s
        await self._tasks.say(self._driver.task)
        await self._post.broadcast(Kind.ROUND, await self.announcement())
        await self._deployment.announce(again=True)
        self.offer(self._driver.state.missing)

    async def renew_signatures(self) -> None:
        """Say the task and the open round's offers again, where another key signs than when they were said.

        Raises:
            Transient: the broker is gone, or the disk is full.
        """
        if await self._tasks.say(self._driver.task, unless_published=True):
            self.offer(self._driver.state.missing)

    def taskless(self, device: str) -> None:
        """A device is here without the task; if it says so again, the announcement was lost or damaged."""
        if device in self._taskless:
            self._task_again = True
            self._changed.set()
        elif len(self._taskless) < _TASKLESS:
            self._taskless.add(device)

    async def _repeat_task(self) -> None:
        """Say the task once more, where a device lacks it; ever less often, for some can never do it."""
        if not self._task_again or self._clock.now() - self._task_said < self._task_pause_s:
            return
        self._task_again, self._task_said = False, self._clock.now()
        self._task_pause_s = min(_TASK_PAUSE_MOST_S, 2 * self._task_pause_s)
        self._taskless.clear()
        with contextlib.suppress(LichenError):  # the greeting of the next connect says it
            await self._tasks.say(self._driver.task)

    async def run_rounds(self) -> None:
        """Announce each change of the round at a bounded rate, and where it stands every ``repeat_s``."""
        while True:
            await self._either(self._changed, self._repeat_s)
            self._changed.clear()
            await self._repeat_task()
            await self.say_round()
            await self._clock.sleep(_MIN_SPACING_S)

    async def say_round(self) -> bool:
        """Publish where the round stands, and keep the words for the history; whether the first worked."""
        try:
            said = await self.announcement()
        except LichenError as error:  # the disk does not say what is announced; it is asked again soon
            log.warning("round_not_announced", why=str(error))
            return False
        try:
            await self._post.broadcast(Kind.ROUND, said)
        except LichenError as error:
            log.info("round_not_announced", why=str(error))  # the greeting of the next connect says it
            return False
        finally:
            with contextlib.suppress(LichenError):  # a full disk: there are others soon
                await asyncio.to_thread(self._save_words, said.waiting_for)
        return True

    async def say_farewell(self) -> None:
        """Leave ``stopped`` with the broker; after the last round ``done`` stays there. Bounded."""
        self._leaving = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self.say_round()

    async def announcement(self) -> RoundAnnouncement:
        """Where the round stands; or that nobody is there to let it go on."""
        said = await self._standing()
        if not self._leaving or self._driver.state.phase is Phase.DONE:
            return said
        gone: dict[str, object] = {
            "phase": "stopped",
            "waiting_for": STOPPED,
            "closes_in_s": None,
            "waited_s": 0.0,
            "until_s": None,
            "every_s": 0.0,
        }
        if self._driver.state.phase is Phase.EVALUATING:  # these metrics are those of an older version
            gone["metrics"] = {}
        return said.model_copy(update=gone)

    async def _standing(self) -> RoundAnnouncement:
        driver, state = self._driver, self._driver.state
        with contextlib.suppress(LichenError):  # a full disk: the count is saved another time
            await asyncio.to_thread(self._traffic.save)
        up, down = self._traffic.totals()
        version = max(0, state.version)
        metrics = await asyncio.to_thread(self._registry.metrics, version)
        closes = state.until is not None and state.phase is Phase.COLLECTING
        return RoundAnnouncement(
            task=driver.task.name,
            round=state.round,
            rounds=driver.rules.rounds,
            phase=state.phase.value,
            selected=state.selected[:_NAMES],
            selected_count=len(state.selected),
            accepted=state.delivered[:_NAMES],
            accepted_count=len(state.delivered),
            closes_in_s=_left(driver) if closes else None,
            version=version,
            metrics=metrics,
            bytes_up=up,
            bytes_down=down,
            waiting_for="; ".join(filter(None, (driver.why(), self.rollout())))[:_WORDS],
            waited_s=max(0.0, driver.now() - state.since),
            until_s=_left(driver),
            every_s=self._repeat_s,
            said_wall=max(0.0, self._clock.wall()),
        )

    def _save_words(self, words: str) -> None:
        """For ``history``: also where no broker can carry them."""
        wear = json.dumps(DISK.get().wear())
        told = {"why": words, "why_wall": str(self._clock.wall()), "disk_writes": wear}
        told["rounds_now"] = str(self._driver.now())
        self._store.put_meta(told | {"broker": json.dumps(self._broker())})

    def _broker(self) -> list[dict[str, object]]:
        """The wait for the broker, where there is one."""
        link = self._post.link
        if link.connected:
            return []
        return [asdict(Wait("broker", link.why, link.since, link.until, "it is tried again"))]

    async def run_offers(self) -> None:
        """Offer the open round to those who have not delivered: at once when asked, else every so often."""
        while True:
            await self._either(self._wanted, self._offer_every_s)
            only = set(self._urgent) if self._wanted.is_set() else None
            self._wanted.clear()
            self._urgent.clear()
            try:
                await self._offering.offer_round(self._driver, only)
            except (LichenError, OSError) as error:  # the next turn says it again
                log.info("not_offered", why=str(error))

    async def _either(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for an event, but not longer than that."""
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        asked = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({timer, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (timer, asked):
                task.cancel()


def _left(driver: Driver) -> float | None:
    """Seconds until something happens by itself; None where only others can end the wait."""
    state = driver.state
    spread = None if state.enough_since is None else state.enough_since + driver.rules.spread_s
    ends = closes_at(driver.rules, state)
    until = state.retry_at or (ends if state.phase is Phase.COLLECTING else spread)
    return None if until is None else max(0.0, until - driver.now())
