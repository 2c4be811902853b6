"""Drives a rollout: feeds device reports to the state machine and publishes its decisions."""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.admission.access import DenialCheck
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.fleet.device_registry import Device, DeviceRegistry
from coordinator.rollout.device_record import DeviceReport
from coordinator.rollout.model import Rollout, RolloutState, RolloutTick
from coordinator.rollout.recorder import RolloutRecorder
from coordinator.rollout.stage_devices import Fact
from coordinator.rollout.transitions import needs_fleet
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.mqtt.running_link import MessagePublisher

log = structlog.get_logger(__name__)

TICK_S: Final = 1.0
_REPEAT_ANNOUNCEMENT_S: Final = 5.0
"""Delay after a failed announcement; each connect repeats it, too."""


@dataclass(eq=False, repr=False)
class RolloutService:
    """The loop.

    Args:
        rollouts: the decisions.
        delivery: announces them.
        roster: the devices.
        barred: denied devices get nothing.
        link: without a broker nothing is announced; each connect announces the present decisions.
        changes: set after a decision, here or by ``lichen rollout``.
        clock: the time.
    """

    rollouts: RolloutRecorder
    delivery: BundleDelivery
    roster: DeviceRegistry
    barred: DenialCheck
    link: MessagePublisher
    changes: Signal
    clock: Clock

    def __post_init__(self) -> None:
        self._looked_at: tuple[int, dict[str, tuple[Device, bool]]] = (-1, {})
        """Of a rollout: the reports of its devices at the last pass, and whether they were barred."""
        self._announced = -1
        self._again_at = 0.0

    async def run(self) -> None:
        """Run the loop, for ever."""
        while True:
            try:
                await self.turn()
            except (LichenError, OSError) as error:
                log.warning("rollout_not_carried_on", why=str(error))
            await self.clock.sleep(TICK_S)

    async def turn(self) -> None:
        """One pass over the devices' reports; announces decisions made here or by ``lichen rollout``."""
        course = await asyncio.to_thread(self.rollouts.course)
        if course.open is not None or course.waiting is not None:
            await asyncio.to_thread(self._look, course)
            course = await asyncio.to_thread(self.rollouts.course)
        # Another process may have collected blobs before the store named them.
        await asyncio.to_thread(self.delivery.ensure_bundles, course)
        over = course.rollout is not None and course.open is None and not course.rollout.cleared
        if (course.serial == self._announced and not over) or self.clock.now() < self._again_at:
            return
        if not self.link.connected:
            return
        serial = course.serial
        self.changes.set()
        if await self.delivery.announce():
            self._announced = serial
        else:
            self._again_at = self.clock.now() + _REPEAT_ANNOUNCEMENT_S

    def _look(self, course: RolloutState) -> None:
        """Apply the time, and the reports of the rollout's devices that have changed since the last pass."""
        rollout = course.open
        if course.number != self._looked_at[0]:
            self._looked_at = (course.number, {})
        known = self._looked_at[1]
        members = () if rollout is None else rollout.members.keys()
        news = {}
        for name in members:
            one, barred, before = self.roster.get(name), self.barred(name) is not None, known.get(name)
            if one is not None and (before is None or before[0] is not one or before[1] != barred):
                news[name] = one, barred
        heard = {name: _heard(one, barred=barred) for name, (one, barred) in news.items()}
        self.rollouts.play(RolloutTick(heard=heard, fleet=self._fleet(course, rollout)))
        known.update(news)

    def _fleet(self, course: RolloutState, rollout: Rollout | None) -> dict[str, Fact] | None:
        """Every device that may get the candidate, if a stage is to be filled.

        Those that run models: others may have the role, but no ONNX Runtime. Before the first version none
        do: those with the role ``observe``.
        """
        if rollout is None or not needs_fleet(rollout):
            return None
        fits = self.delivery.fits(rollout.release)
        devices = {
            name: one
            for name in self.roster.names()
            if (one := self.roster.get(name)) is not None and self.barred(name) is None and fits(name)
        }
        running = {name: one for name, one in devices.items() if one.state.model or one.state.trial}
        observing = {name: one for name, one in devices.items() if "observe" in one.state.roles}
        able = running if running and course.stable is not None else {**observing, **running}
        return {
            name: Fact(online=one.online, labels=dict(one.state.labels or {})) for name, one in able.items()
        }


def _heard(device: Device, *, barred: bool) -> DeviceReport:
    state = device.state
    return DeviceReport(online=device.online, model=state.model, trial=state.trial, barred=barred)
