"""Offer -> fetch the blobs on the route -> train in the worker, or make prototypes -> quantize -> spool.

One offer at a time. A repeated offer changes nothing; an offer for another task or base, or a later round,
cancels the present training. After a failure the offer waits, longer each time; it comes again
(``edge_agent.training.offer_schedule``).
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.messaging.contact import Contact
from edge_agent.messaging.device_trace import NO_TRACE, DeviceTrace
from edge_agent.messaging.outbox import Outbox
from edge_agent.messaging.round_metrics import RoundMetrics
from edge_agent.ports import Trainer
from edge_agent.secure_aggregation.service import MaskingService
from edge_agent.storage.agent_storage import AgentStorage
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.tasks.roles import learning_role, no_role_reason
from edge_agent.tasks.workspace import TrainingData
from edge_agent.training.delivery import Delivery, TrainedUpdate
from edge_agent.training.model_blobs import ModelBlobs
from edge_agent.training.prototype_maker import PrototypeMaker
from edge_agent.training.secure_update import fetched_vector
from edge_agent.training.turns import TrainingTurns
from edge_agent.training.update_encoding import encode_update
from models import registry
from models.contract import Blobs, LocalResult, Tensors
from models.materials import Material
from models.seeds import derive_round_seed
from models.worker import job_folder
from protocol.errors import LichenError, Transient
from protocol.messages import Offer
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.process.worker import Worker
from runtime.storage.blob_fetcher import Fetcher
from runtime.waits import StatusPart, StatusText, Wait

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S: Final = 2.0
_LAST_PAUSE_S: Final = 120.0


@dataclass(eq=False, repr=False)
class Learner(StatusPart):
    """One service.

    Args:
        settings: of the agent.
        tasks: knows the present task and its data.
        outbox: given the updates.
        storage: blobs, private tensors, and the ledger of rounds.
        fetcher: fetches blobs.
        clock: of pauses.
        learning: its status.
        metrics: given the numbers of each round that has an update.
        contact: knows when the coordinator was last heard.
        masking: masks the updates of secure rounds.
        worker: trains; None uses a child process as configured.
        zygote: starts encoder processes; None starts one when needed.
        trace: records the steps of each round.
        turns: of all tasks of the device.
    """

    settings: AgentSettings
    tasks: CurrentTask
    outbox: Outbox
    storage: AgentStorage
    fetcher: Fetcher
    clock: Clock
    learning: StatusText
    metrics: RoundMetrics
    contact: Contact
    masking: MaskingService
    worker: Trainer | None = None
    zygote: ZygoteClient | None = None
    trace: DeviceTrace = NO_TRACE
    turns: TrainingTurns = field(default_factory=TrainingTurns)

    def __post_init__(self) -> None:
        self._jobs = self.settings.cache_dir / "jobs"
        self.blobs = ModelBlobs(self.settings, self.storage.blobs, self.fetcher)
        self._prototypes = PrototypeMaker(self.settings, self.blobs, self.learning.say, self.zygote)
        learn = self.settings.learn
        self._worker = self.worker or Worker(learn.module, idle_s=learn.worker_idle_s)
        self._next: Offer | None = None
        self._current: Offer | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = Signal()
        self._not_before: dict[tuple[str, int, str], tuple[float, float]] = {}
        self._delivery = Delivery(self.outbox, self.metrics, self.learning)
        self.failures = 0

    @property
    def why(self) -> str:
        """What it does or waits for."""
        return self.learning.why

    @property
    def trained(self) -> int:
        """Updates that it has given to the outbox."""
        return self._delivery.count

    def status(self) -> dict[str, Any]:
        """What it has learned, and what it does."""
        return {
            "route": list(self.blobs.last_route),
            "learning": self.why,
            "privacy": self.storage.privacy.words or "nothing was released",
            "rounds_trained": self.trained,
        }

    def waits(self) -> Iterator[Wait]:
        """The wait for a round."""
        now = self.learning
        if now.until is None and not {"train", "prototype"} & {*self.settings.roles}:
            return  # a device that only observes gets no offers
        if self.outbox.waiting and now.until is None:
            return  # the update waits for its receipt; the outbox reports it
        then = "it is given up, or tried again"
        if now.until is None:
            ready = " (in role prototype: when it has made the encoder models, and a device trains)"
            role = ready if learning_role(self.settings, self._task_now()) == "prototype" else ""
            then = f"until the coordinator offers a round{role}; {self.contact.words}"
        yield Wait("round", now.why, now.since, now.until, then)

    def _task_now(self) -> Task | None:
        return None if self.tasks.workspace is None else self.tasks.workspace.task

    def offer(self, offer: Offer) -> None:
        """Take an offer. The newest one waits, in place of an earlier one."""
        current = self._current
        if current is not None:
            if _key(current) == _key(offer):
                self.masking.again(offer)
                return
            if current.task == offer.task and offer.round < current.round:
                return
            _log.info("training_cancelled", round=current.round, newer=offer.round)
            self.cancel()
        self._next = offer
        self._news.set()

    def stop(self) -> None:
        """Stop the present training, and forget the offer that waits: the round is over."""
        self._next = None
        self.cancel()

    def cancel(self) -> None:
        """Stop the present training, if any."""
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Handle offers, for ever."""
        await asyncio.to_thread(shutil.rmtree, self._jobs, ignore_errors=True)  # of a process that was killed
        try:
            while True:
                await self._news.wait()
                offer, self._next = self._next, None
                if offer is None:
                    continue
                try:
                    wanted = await self._is_wanted(offer)
                except Transient as error:  # the spool cannot be read now
                    self._failed(offer, error)
                    continue
                if wanted:
                    await self._attempt(offer)
        finally:
            self.cancel()
            await self._worker.close()
            await self._prototypes.close()

    async def _is_wanted(self, offer: Offer) -> bool:
        work = self.tasks.workspace
        if work is None or work.task.name != offer.task:
            self.learning.say(f"the offer is for task {offer.task!r}, which is not announced here")
            return False
        if why := self._why_no_part(work, offer):
            self.learning.say(why)
            return False
        if self.clock.now() < self._not_before.get(_key(offer), (0.0, 0.0))[0]:
            return False
        have, least = work.readiness().samples, work.task.rounds.min_windows
        if have < least:
            self.learning.say(f"{have} {_noun(work.task)} to learn from, the task wants {least}")
            return False
        entry = self.storage.ledger.find(offer)
        if entry is not None and entry.status == "spooled":
            pending = await asyncio.to_thread(self.storage.spool.pending)
            if any(e.digest == entry.digest for e in pending):
                self.learning.say(f"the update for round {offer.round} waits for its receipt")
                return False
        why = self.storage.ledger.reason_to_skip(offer, lost=offer.has_lost(self.settings.device))
        if not why:
            why = await asyncio.to_thread(self.storage.privacy.refusal, work.task, have)
            self.tasks.spend(why := why or await asyncio.to_thread(self.masking.refusal, work.task))
        if why:
            self.learning.say(why)
        return not why

    def _why_no_part(self, work: TrainingData, offer: Offer) -> str:
        if self.tasks.withheld:
            return self.tasks.withheld
        if (most := self.settings.privacy.max_clip) is not None and (offer.clip or 0.0) > most:
            return f"the offer's clip is {offer.clip:g}; this device allows {most:g} (privacy.max_clip)"
        match learning_role(self.settings, work.task):
            case "train":
                return ""
            case "prototype":
                return self._prototypes.refusal(work.task, offer)
            case _:
                return no_role_reason(self.settings, work.task)

    async def _attempt(self, offer: Offer) -> None:
        """Train in a task of its own, so that a newer offer can cancel it."""
        self._current = offer
        self._task = asyncio.create_task(self._learn_in_turn(offer))
        try:
            await asyncio.wait([self._task])
        finally:
            task, self._task, self._current = self._task, None, None
            if not task.done():  # the agent stops: the worker is ended too
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            self.learning.say("training was cancelled")
            return
        error = task.exception()
        if error is None:
            self._not_before.pop(_key(offer), None)
        elif isinstance(error, LichenError):
            self._failed(offer, error)
        else:
            raise error

    def _failed(self, offer: Offer, error: LichenError) -> None:
        pause = min(_LAST_PAUSE_S, 2 * self._not_before.get(_key(offer), (0.0, _FIRST_PAUSE_S / 2))[1])
        self._not_before = {_key(offer): (self.clock.now() + pause, pause)}
        self.failures += 1
        self.learning.say(f"round {offer.round} failed: {error}", pause)
        _log.error("local_round_failed", round=offer.round, error=str(error), pause_s=pause)

    async def _learn_in_turn(self, offer: Offer) -> None:
        async with self.turns.turn(offer.task, self.learning.say):
            masked = await self._learn(offer)
        if masked is not None:  # without a turn: a secure round waits for other devices
            await masked()

    async def _learn(self, offer: Offer) -> Callable[[], Awaitable[None]] | None:
        """Train, and deliver the update; of a secure round the result does that."""
        settings, work = self.settings, self.tasks.workspace
        if work is None:
            raise Transient("no task is known")
        task, spans = work.task, self.trace.learning(offer)
        profile, data = await asyncio.to_thread(work.load, settings.learn.max_windows)
        private = await asyncio.to_thread(self.storage.private.read, task.name)
        private = await asyncio.to_thread(self.storage.privacy.with_account, task, private)
        spans.mark("windows", count=len(data))
        started = self.clock.now()
        if learning_role(settings, task) == "prototype":
            result = await self._prototypes.make(offer, work, data, private, self._seed(task, offer))
            took = {"prototypes_s": self.clock.now() - started}
        else:
            seed, threads = self._seed(task, offer), settings.learn.threads
            allow, device = settings.packages.allow, settings.device
            job = job_folder.TrainJob(task, device, offer.round, seed, threads, profile, packages=allow)
            words = f"fetching version {offer.base[:12]} for round {offer.round}"
            self.learning.say(words, settings.fetch_timeout_s)
            state = await self.blobs.fetch_for_training(offer, job_folder.context(job), data, private)
            spans.mark("fetch")
            started = self.clock.now()
            result = await self._train(job, data, state, private)
            took = {"train_s": self.clock.now() - started}
        result, account = await asyncio.to_thread(self.storage.privacy.charge, task, result)
        spans.mark("train")
        metrics = {**result.metrics, **took, _noun(task): float(len(data))}
        carry = await asyncio.to_thread(self.storage.spool.carry, offer.task)
        spooled = self.clock.now()
        who = (settings.device, profile.modalities)
        frame, new_carry = await asyncio.to_thread(encode_update, offer, task, who, data, result, carry=carry)
        metrics |= {"quantize_s": self.clock.now() - spooled, "update_bytes": float(len(frame))}
        spans.mark("quantize", bytes=len(frame))
        saving = partial(self.storage.saving, offer.task, result.private, account)
        if task.secure_aggregation is None:
            await self._delivery.submit(TrainedUpdate(new_carry, saving, metrics, spans), frame, offer)
            return None
        silent = TrainedUpdate(new_carry, saving, {}, spans)  # even times and sizes tell of the device's data
        vector_N, route = await fetched_vector(self.blobs, offer, task, frame)
        submit = partial(self._delivery.submit, silent)
        return partial(self.masking.take_part, offer, task, vector_N, submit, route)

    def _seed(self, task: Task, offer: Offer) -> int:
        return derive_round_seed(task.seed, offer.round, self.settings.device)

    async def _train(
        self, job: job_folder.TrainJob, data: Material, state: Blobs, private: Tensors
    ) -> LocalResult:
        settings = self.settings
        words = f"training round {job.round} on {len(data)} {_noun(job.task)}"
        self.learning.say(words, settings.learn.timeout_s)
        folder = self._jobs / f"{job.task.name}-{job.round}"
        try:
            await asyncio.to_thread(_write_job, folder, job, data, state, private)
            await self._worker.run(folder, settings.learn.timeout_s)
            return await asyncio.to_thread(job_folder.read_result, folder)
        except OSError as error:
            raise Transient(f"{folder}: {error}") from None
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


def _noun(task: Task) -> str:
    """Noun for the task's training data."""
    return registry.method(task.method).kind.noun


def _write_job(
    folder: Path, job: job_folder.TrainJob, data: Material, state: Blobs, private: Tensors
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job_folder.write_train(folder, job, data, state, private)


def _key(offer: Offer) -> tuple[str, int, str]:
    return offer.task, offer.round, offer.base
