"""Announcements of the coordinator: task and round. Desired state is retained or repeated."""

import asyncio
import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

import structlog

from coordinator.aggregation.reported_metrics import sound
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.messaging.sender import Sender
from coordinator.messaging.traffic import Traffic
from coordinator.rollout.recorder import RolloutRecorder
from coordinator.round_machine.closing import closes_at
from coordinator.round_machine.events import RoundPhase
from coordinator.rounds.driver import RoundDriver
from coordinator.rounds.offers import OfferAnnouncer
from coordinator.rounds.offline_announcement import STOPPED, offline_announcement
from coordinator.rounds.task_announcer import TaskAnnouncer
from coordinator.storage.database import Database
from coordinator.storage.model_registry import ModelRegistry
from coordinator.trust.work_signer import WorkSigner
from protocol.errors import LichenError
from protocol.messages import RoundAnnouncement, encode
from protocol.topics import Kind, broadcast_topic
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.metrics import MetricFamily
from runtime.mqtt.link import Will
from runtime.mqtt.running_link import RunningLink
from runtime.storage.disk import DISK
from runtime.waits import Wait

log = structlog.get_logger(__name__)

_MIN_SPACING_S: Final = 0.5
"""Shortest interval of two round announcements; changes between are skipped, the last one is always sent."""
_MAX_ANNOUNCED_NAMES: Final = 64
"""Devices named in an announcement, which every subscriber gets at each change; of more, their number."""
_TASKLESS: Final = 500
REPEAT_S: Final = 30.0
"""Interval of the repeated round announcement: it holds durations, and silence means that nothing runs."""
_TASK_PAUSE_MOST_S: Final = 3600.0
_FAREWELL_S: Final = 2.0
_MAX_WAITING_FOR: Final = 1000
"""Characters in ``RoundAnnouncement.waiting_for``."""


@dataclass(eq=False, repr=False, kw_only=True)
class Announcer:
    """Publishes ``b/task`` and ``b/round``.

    Args:
        post: sends to devices.
        driver: the state of the round.
        store: holds the sentence for the history.
        roster: the devices.
        registry: versions and their metrics.
        deployment: which bundles devices should run.
        rollouts: what a rollout waits for; None: there are none.
        traffic: bytes so far.
        signer: signs the task.
        changes: set when the round has changed.
        offers: publishes the round's offer.
        clock: the time.
        repeat_s: interval of the repeated announcement.
    """

    post: Sender
    driver: RoundDriver
    store: Database
    roster: DeviceRegistry
    registry: ModelRegistry
    deployment: BundleDelivery
    rollouts: RolloutRecorder | None
    traffic: Traffic
    signer: WorkSigner
    changes: Signal
    offers: OfferAnnouncer
    clock: Clock
    repeat_s: float = REPEAT_S

    def __post_init__(self) -> None:
        self._tasks = TaskAnnouncer(self.post, self.signer)
        self._leaving = False
        self._taskless: set[str] = set()
        self._task_again = False
        self._task_said, self._task_pause_s = self.clock.now(), self.repeat_s

    def will(self) -> Will:
        """The will, which the broker publishes if we vanish; its round is that of the last connect."""
        said = offline_announcement(self.driver.task, self.driver.rules, self.driver.state)
        return Will(broadcast_topic(self.post.fleet, Kind.ROUND), encode(said))

    async def publish_all(self) -> None:
        """At every connect: publish all retained messages again.

        Raises:
            Transient: the broker is gone again.
        """
        self._task_pause_s = self.repeat_s
        await self._tasks.say(self.driver.task)
        await self.post.broadcast(Kind.ROUND, await self.announcement())
        await self.deployment.announce(again=True)
        self.offers.publish_again()

    async def renew_signatures(self) -> bool:
        """Publish bundle pointers again; task and offers, too, if the signing key has changed.

        Returns:
            Whether there is nothing left to announce.

        Raises:
            Transient: the broker is gone, or the disk is full.
        """
        if await self._tasks.say(self.driver.task, unless_published=True):
            self.offers.publish_again()
        return await self.deployment.announce(again=True)

    def on_device_without_task(self, device: str) -> None:
        """A device reports that it has no task; if it does again, the announcement was lost or damaged."""
        if device in self._taskless:
            self._task_again = True
            self.changes.set()
        elif len(self._taskless) < _TASKLESS:
            self._taskless.add(device)

    async def _repeat_task(self) -> None:
        """Publish the task again if a device lacks it, at growing intervals: some can never run it."""
        if not self._task_again or self.clock.now() - self._task_said < self._task_pause_s:
            return
        self._task_again, self._task_said = False, self.clock.now()
        self._task_pause_s = min(_TASK_PAUSE_MOST_S, 2 * self._task_pause_s)
        self._taskless.clear()
        with contextlib.suppress(LichenError):  # the next connect publishes it
            await self._tasks.say(self.driver.task)

    async def run_rounds(self) -> None:
        """Announce each change of the round at a bounded rate, and the round every ``repeat_s``."""
        while True:
            await self.changes.wait(self.repeat_s, self.clock)
            await self._repeat_task()
            await self.publish_round()
            await self.clock.sleep(_MIN_SPACING_S)

    async def publish_round(self) -> bool:
        """Publish the round, and store the sentence for the history; returns whether the former worked."""
        try:
            said = await self.announcement()
        except (
            LichenError
        ) as error:  # an error of the disk changes no announcement; the next attempt comes soon
            log.warning("round_not_announced", why=str(error))
            return False
        try:
            await self.post.broadcast(Kind.ROUND, said)
        except LichenError as error:
            log.info("round_not_announced", why=str(error))  # the next connect publishes it
            return False
        finally:
            with contextlib.suppress(LichenError):  # a full disk: the next announcement comes soon
                await asyncio.to_thread(self._save_words, said.waiting_for)
        return True

    async def publish_stopped(self) -> None:
        """Leave ``stopped`` with the broker; after the last round ``done`` stays there. Bounded in time."""
        self._leaving = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self.publish_round()

    async def announcement(self) -> RoundAnnouncement:
        """The round announcement; after the end one that nothing will continue it."""
        said = await self._standing()
        if not self._leaving or self.driver.state.phase is RoundPhase.DONE:
            return said
        gone: dict[str, object] = {
            "phase": "stopped",
            "waiting_for": STOPPED,
            "closes_in_s": None,
            "waited_s": 0.0,
            "until_s": None,
            "every_s": 0.0,
        }
        if self.driver.state.phase is RoundPhase.EVALUATING:  # these metrics are those of an older version
            gone["metrics"] = {}
        return said.model_copy(update=gone)

    async def _standing(self) -> RoundAnnouncement:
        driver, state = self.driver, self.driver.state
        with contextlib.suppress(LichenError):  # a full disk: the count is saved another time
            await asyncio.to_thread(self.traffic.save)
        up, down = self.traffic.totals()
        version = max(0, state.version)
        metrics = await asyncio.to_thread(self.registry.metrics, version)
        closes = state.until is not None and state.phase is RoundPhase.COLLECTING
        return RoundAnnouncement(
            task=driver.task.name,
            round=state.round,
            rounds=driver.rules.rounds,
            phase=state.phase.value,
            selected=state.selected.first(_MAX_ANNOUNCED_NAMES),
            selected_count=len(state.selected),
            accepted=state.delivered.first(_MAX_ANNOUNCED_NAMES),
            accepted_count=len(state.delivered),
            closes_in_s=_left(driver) if closes else None,
            version=version,
            metrics=metrics,
            bytes_up=up,
            bytes_down=down,
            waiting_for="; ".join(filter(None, (driver.why(), self._rollout())))[:_MAX_WAITING_FOR],
            waited_s=max(0.0, driver.now() - state.since),
            until_s=_left(driver),
            every_s=self.repeat_s,
            said_wall=max(0.0, self.clock.wall()),
        )

    def _rollout(self) -> str:
        """What a rollout waits for, as text."""
        return "" if self.rollouts is None else self.rollouts.waiting_for(self.roster.get)

    def _save_words(self, words: str) -> None:
        """Store the sentences for ``history``, also while no broker is connected."""
        wear = json.dumps(DISK.get().wear())
        told = {"why": words, "why_wall": str(self.clock.wall()), "disk_writes": wear}
        told["rounds_now"] = str(self.driver.now())
        self.store.put_meta(told | {"broker": json.dumps(self._broker())})

    def metrics(self) -> Iterable[MetricFamily]:
        """Metrics of the newest evaluated version."""
        found = sound(self.registry.metrics(max(0, self.driver.state.version)))
        values = [((name,), value) for name, value in found.items()]
        words = "Metrics of the newest version that has any"
        yield MetricFamily("lichen_version_metric", words, "gauge", values, ("metric",))

    def _broker(self) -> list[dict[str, object]]:
        """The wait for the broker; None if it is connected."""
        link = self.post.link
        if link.connected:
            return []
        return [asdict(Wait("broker", link.why, link.since, link.until, "it is tried again"))]


def _left(driver: RoundDriver) -> float | None:
    """Seconds until the wait ends by itself; None if only a device or the operator can end it."""
    state = driver.state
    spread = None if state.enough_since is None else state.enough_since + driver.rules.spread_s
    ends = closes_at(driver.rules, state)
    until = state.retry_at or (ends if state.phase is RoundPhase.COLLECTING else spread)
    return None if until is None else max(0.0, until - driver.now())


async def stay_connected(link: RunningLink, announcer: Announcer) -> None:
    """Run the link; however this process ends in order, it announces its end before it disconnects."""
    running = asyncio.ensure_future(link.run(on_connect=announcer.publish_all, will=announcer.will))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            await announcer.publish_stopped()
        raise
    finally:
        running.cancel()
        await asyncio.wait([running])
