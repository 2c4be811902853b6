"""Tasks and offers: verified, if this device has a trust root, and then acted on."""

from collections import Counter
from dataclasses import dataclass

import structlog
from pydantic_core import from_json

from edge_agent.deployment.service import DeploymentService
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.training.learner import Learner
from edge_agent.training.offer_schedule import OfferSchedule
from edge_agent.trust.work_verifier import Work, WorkVerifier
from protocol.errors import Refused, Transient
from protocol.messages import Offer, decode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.topics import Route
from runtime.concurrency.signals import Signal

_log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class WorkReceiver:
    """One service, and two handlers.

    Args:
        verifier: verifies signatures.
        tasks: takes announcements.
        learner: stops when the task changes.
        schedule: takes offers that ask this device.
        deployment: checks its model again when the task changes.
        changed: set when the device has something to report.
        refused: counts refusals by reason.
    """

    verifier: WorkVerifier
    tasks: CurrentTask
    learner: Learner
    schedule: OfferSchedule
    deployment: DeploymentService
    changed: Signal
    refused: Counter[str]

    async def on_task(self, _route: Route, payload: bytes) -> None:
        """Handle an announced task; an empty payload ends a further task of the device. Raises Refused."""
        if not payload:
            await self._withdrawn()
            return
        try:
            announcement = decode(payload, TaskAnnouncement)
        except Refused as error:
            if _is_json(payload):  # valid JSON is a newer release's; anything else was damaged on the way
                self.tasks.refuse(error.words)
            raise
        await self._verified(announcement)

    async def _withdrawn(self) -> None:
        """Nobody announces the task any more. The main task stays: a broker may have lost its message."""
        work = self.tasks.workspace
        if work is None or self.tasks.settings.task_name is None:
            return
        _log.info("task_ended", name=work.task.name)
        self.schedule.end()
        self.learner.outbox.rest()
        await self.tasks.end()
        self.deployment.task_ended()

    async def on_offer(self, _route: Route, payload: bytes) -> None:
        """Handle the offer of a round; an empty payload withdraws it. Raises Refused.

        An offer that does not ask this device is not verified: that takes a process, on each of a fleet.
        """
        if not payload:
            self.schedule.end()
            return
        offer = decode(payload, Offer)
        if self.schedule.asks_us(offer):
            await self._verified(offer)

    async def _verified(self, work: Work) -> None:
        """Act on it; with a trust root, :meth:`run` does so after its signature was verified."""
        if self.verifier.active:
            self.verifier.give(work)
        else:
            await self.act_on(work)

    async def run(self) -> None:
        """Act on verified tasks and offers, for ever."""
        while True:
            try:
                await self.act_on(await self.verifier.next())
            except Refused as error:
                self.refused[error.reason] += 1
            except Transient as error:
                _log.warning("work_waits", why=str(error))
            self.changed.set()

    async def act_on(self, work: Work) -> None:
        """Hand an offer to its schedule; for a new task restart all that depends on it.

        Raises:
            Refused: this device cannot do the task.
        """
        if isinstance(work, Offer):
            self.schedule.take(work)
            return
        was = self.tasks.withheld
        try:
            task = await self.tasks.accept(work)
        except Refused:
            if self.tasks.withheld:  # what is trained or waits was for another protection
                self.learner.cancel()
                self.learner.outbox.rest()
            raise
        if task is None:
            if was and not self.tasks.withheld:
                self.learner.outbox.resume()
            return
        self.learner.cancel()  # an update for the former task is of no use
        await self.tasks.use(task)
        self.learner.outbox.resume()
        _log.info("task_started", name=task.name, method=task.method)
        self.changed.set()
        self.deployment.task_changed()


def _is_json(payload: bytes) -> bool:
    try:
        from_json(payload)
    except ValueError:
        return False
    return True
