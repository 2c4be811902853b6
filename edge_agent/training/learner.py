"""Offer -> fetch the blobs on the route -> train in the worker, or make prototypes -> quantize -> spool.

One offer at a time. The same offer again changes nothing; an offer for another round, base or task that is
not older cancels the one at work. What fails is logged and waits, longer each time: the offer comes again.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.inference.serving.zygote_client import Zygote
from edge_agent.ports import Trainer
from edge_agent.tasks.private_tensors import PrivateTensors
from edge_agent.tasks.roles import learns_by, no_role
from edge_agent.tasks.workspace import Workspace
from edge_agent.training.model_blobs import Versions
from edge_agent.training.privacy_account import PRIVACY_FILE, PrivacyAccount
from edge_agent.training.prototype_maker import PrototypeMaker
from edge_agent.training.round_ledger import Ledger
from edge_agent.training.routes import Routes
from edge_agent.training.update_encoding import Carry, pack_update
from models import registry
from models.contract import Blobs, LocalResult, Tensors
from models.data.materials import Material
from models.privacy.device_account import DeviceAccount
from models.worker import job_folder
from protocol.errors import LichenError, Transient
from protocol.frames.frame import digest
from protocol.messages import Metrics, Offer, Receipt
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.uninterrupted import finished
from runtime.process.worker import Worker
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from runtime.storage.spool import Spool
from runtime.waits import Explained

_log = structlog.get_logger("edge_agent.training.learner")
_FIRST_PAUSE_S: Final = 2.0
_LAST_PAUSE_S: Final = 120.0
_Packed = tuple[bytes, Carry | None]


class Learner(Explained):
    """One service. ``on_spooled(offer, metrics)`` is called when an update is safe in the spool."""

    def __init__(
        self,
        settings: AgentSettings,
        workspace: Callable[[], Workspace | None],
        *,
        blobs: BlobStore,
        fetcher: Fetcher,
        spool: Spool,
        ledger: Ledger,
        clock: Clock,
        on_spooled: Callable[[Offer, dict[str, float]], None],
        worker: Trainer | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        super().__init__(clock, ledger.at_start())
        self._settings = settings
        self._workspace = workspace
        self._spool = spool
        self._ledger = ledger
        self._clock = clock
        self._on_spooled = on_spooled
        self._jobs = settings.cache_dir / "jobs"
        versions = Versions(settings, blobs, fetcher)
        self.routes = Routes(versions, self.say, settings.fetch_timeout_s)
        self._prototypes = PrototypeMaker(settings, versions, self.say, zygote)
        self._private = PrivateTensors(settings.state_dir / "private")
        self.privacy = PrivacyAccount(settings.state_dir / PRIVACY_FILE, settings.learn)
        self._worker = worker or Worker(settings.learn.module, idle_s=settings.learn.worker_idle_s)
        self._next: Offer | None = None
        self._current: Offer | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._not_before: dict[tuple[str, int, str], tuple[float, float]] = {}
        self.trained = 0
        self.failures = 0

    def offer(self, offer: Offer) -> None:
        """An offer came. The newest waits; it replaces the one that waited."""
        current = self._current
        if current is not None:
            if _key(current) == _key(offer):
                return
            if current.task == offer.task and offer.round < current.round:
                return
            _log.info("a newer offer cancels training", round=current.round, newer=offer.round)
            self.cancel()
        self._next = offer
        self._news.set()

    def cancel(self) -> None:
        """Stop the training at work, if any."""
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Work on offers, for ever."""
        await asyncio.to_thread(shutil.rmtree, self._jobs, ignore_errors=True)  # of a life that was cut off
        try:
            while True:
                await self._news.wait()
                self._news.clear()
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
        work = self._workspace()
        if work is None or work.task.name != offer.task:
            self.why = f"the offer is for task {offer.task!r}, which is not announced here"
            return False
        if why := self._why_no_part(work, offer):
            self.why = why
            return False
        if self._clock.now() < self._not_before.get(_key(offer), (0.0, 0.0))[0]:
            return False
        have, least = work.now().samples, work.task.rounds.min_windows
        if have < least:
            self.why = f"{have} {_noun(work.task)} to learn from, the task wants {least}"
            return False
        entry = self._ledger.find(offer)
        if entry is not None and entry.status == "spooled":
            pending = await asyncio.to_thread(self._spool.pending)
            if any(e.digest == entry.digest for e in pending):
                self.why = f"the update for round {offer.round} waits for its receipt"
                return False
        if settled := self._ledger.why_not(offer):
            self.why = settled
        return not settled

    def _why_no_part(self, work: Workspace, offer: Offer) -> str:
        match learns_by(self._settings):
            case "train":
                return ""
            case "prototype":
                return self._prototypes.lack(work.task, offer)
            case _:
                return no_role(self._settings)

    async def _attempt(self, offer: Offer) -> None:
        """Train in a task of its own, so that a newer offer can cancel it."""
        self._current = offer
        self._task = asyncio.create_task(self._learn(offer))
        try:
            await asyncio.wait([self._task])
        finally:
            task, self._task, self._current = self._task, None, None
            if not task.done():  # we are stopping: the worker ends with us
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            self.why = "training was cancelled"
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
        self._not_before = {_key(offer): (self._clock.now() + pause, pause)}
        self.failures += 1
        self.say(f"round {offer.round} failed: {error}", pause)
        _log.error(
            "local round failed; the offer comes again", round=offer.round, error=str(error), pause_s=pause
        )

    async def _learn(self, offer: Offer) -> None:
        work = self._workspace()
        if work is None:
            raise Transient("no task is known")
        settings, task = self._settings, work.task
        profile, data = await asyncio.to_thread(work.material, settings.learn.max_windows)
        private = await asyncio.to_thread(self._private.read, task.name)
        private = await asyncio.to_thread(self.privacy.given, task, private)
        started = self._clock.now()
        if learns_by(settings) == "prototype":
            result = await self._prototypes.make(offer, work, data, private)
            took = {"prototypes_s": self._clock.now() - started}
        else:
            job = job_folder.TrainJob(
                task, settings.device, offer.round, offer.seed, settings.learn.threads, profile
            )
            state = await self.routes.state(offer, job_folder.context(job), data, private)
            started = self._clock.now()
            result = await self._train(job, data, state, private)
            took = {"train_s": self._clock.now() - started}
        result, account = await asyncio.to_thread(self.privacy.charged, task, result)
        metrics = {**result.metrics, **took, _noun(task): float(len(data))}
        carry = await asyncio.to_thread(self._spool.carry, offer.task)
        spooled = self._clock.now()
        who = (settings.device, profile.modalities)
        frame, new_carry = await asyncio.to_thread(pack_update, offer, task, who, data, result, carry=carry)
        metrics["quantize_s"] = self._clock.now() - spooled
        await self._spool_update(offer, (frame, new_carry), (result.private, account), metrics)

    async def _train(
        self, job: job_folder.TrainJob, data: Material, state: Blobs, private: Tensors
    ) -> LocalResult:
        settings = self._settings
        self.say(f"training round {job.round} on {len(data)} {_noun(job.task)}", settings.learn.timeout_s)
        folder = self._jobs / f"{job.task.name}-{job.round}"
        try:
            await asyncio.to_thread(_write_job, folder, job, data, state, private)
            await self._worker.run(folder, settings.learn.timeout_s)
            return await asyncio.to_thread(job_folder.read_result, folder)
        except OSError as error:
            raise Transient(f"{folder}: {error}") from None
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    async def _spool_update(
        self, offer: Offer, packed: _Packed, kept: tuple[Tensors, DeviceAccount | None], metrics: Metrics
    ) -> None:
        frame, new_carry = packed
        metrics["update_bytes"] = float(len(frame))
        name = digest(frame)
        private, account = kept
        keep = asyncio.to_thread(self._keep, offer, name, frame, new_carry, private, account=account)
        finite = {key: value for key, value in metrics.items() if np.isfinite(value)}
        try:
            await finished(keep)  # cancelled in between, the next training would read what this one writes
        except asyncio.CancelledError:
            self._on_spooled(offer, finite)  # it is in the spool, and nothing else may have it sent
            raise
        self.trained += 1
        self.why = f"the update for round {offer.round} waits for its receipt"
        _log.info("update spooled", round=offer.round, bytes=len(frame))
        self._on_spooled(offer, finite)

    def _keep(
        self,
        offer: Offer,
        name: str,
        frame: bytes,
        carry: Carry | None,
        private: Tensors,
        *,
        account: DeviceAccount | None = None,
    ) -> None:
        """On the disk, in an order in which it may be cut off anywhere.

        The privacy account comes first, then what the method keeps: it may count an update that is never
        sent, but must not miss one that is. Then the ledger: it may claim an update that the spool lacks, and
        then training runs again. Where the disk is full nothing was sent, and nothing is counted.
        """
        with self.privacy.written(account), self._private.undone(offer.task, by=LichenError):
            self._private.write(offer.task, private)
            self._ledger.spooled(offer, name)
            self._spool.put(task=offer.task, round_=offer.round, digest=name, payload=frame, carry=carry)

    def settled(self, receipt: Receipt) -> None:
        """The receipt of an update came (touches the disk)."""
        self._ledger.settled(receipt)
        self.why = self._ledger.words(receipt)

    def withdrawn(self, receipt: Receipt) -> bool:
        """An accepted update was refused afterwards (touches the disk); False where that is nothing new."""
        changed = self._ledger.withdrawn(receipt)
        if changed and self._current is None:
            self.why = self._ledger.words(receipt)
        return changed


def _noun(task: Task) -> str:
    """Of what the task learns from."""
    return registry.method(task.method).kind.noun


def _write_job(
    folder: Path, job: job_folder.TrainJob, data: Material, state: Blobs, private: Tensors
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job_folder.write_train(folder, job, data, state, private)


def _key(offer: Offer) -> tuple[str, int, str]:
    return offer.task, offer.round, offer.base
