"""Follows a ``ModelPointer``: verifies, fetches, checks and loads the bundle, which then starts its trial.

``edge_agent.deployment.executor`` swaps and writes; this service does what takes time: fetching and loading.
"""

import asyncio
from pathlib import Path
from typing import Final

import structlog

from edge_agent.config.agent import DeploySettings
from edge_agent.deployment.announced_pointers import AnnouncedPointers
from edge_agent.deployment.bundle_store import BundleStore, disk_errors_as_transient
from edge_agent.deployment.events import BundleRefused as DoesNotRun
from edge_agent.deployment.events import (
    Damaged,
    DeploymentPhase,
    FetchBundle,
    Fetched,
    Loaded,
    NothingToDo,
    Pointed,
    PointerRejected,
    Started,
    TooOld,
    Withdrawn,
)
from edge_agent.deployment.executor import DeploymentExecutor
from edge_agent.deployment.ports import Runner
from edge_agent.deployment.record import DeploymentRecord, installed_bundle, reported
from edge_agent.inference.onnx_models.compatibility import require_compatible
from edge_agent.inference.onnx_models.window_model import read_manifest
from edge_agent.messaging.device_trace import NO_TRACE, DeviceTrace
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.tasks.workspace import TrainingData
from edge_agent.trust.updater import MetadataUpdater
from protocol.bundle import BundleManifest
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.messages import ModelPointer, decode
from protocol.rollout import Trial, TrialReport
from protocol.topics import Kind, Route
from runtime.clock import Clock, SystemClock
from runtime.concurrency.signals import Signal
from runtime.storage.blob_fetcher import Fetcher
from runtime.waits import StatusText, Wait

_log = structlog.get_logger(__name__)
_RETRY_S: Final = 5.0
_AGAIN_MOST_S: Final = 300.0
_DAMAGED: Final = frozenset({Reason.MALFORMED, Reason.WRONG_DIGEST})


class DeploymentService(StatusText):
    """Two services: :meth:`run` follows pointers and loads; that of :attr:`executor` writes and watches."""

    def __init__(
        self,
        folder: Path,
        fetcher: Fetcher,
        inference: Runner,
        tasks: CurrentTask,
        *,
        fetch_timeout_s: float,
        changed: Signal,
        clock: Clock | None = None,
        trust: MetadataUpdater | None = None,
        settings: DeploySettings | None = None,
        trace: DeviceTrace = NO_TRACE,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(clock, "no model was announced")
        self._folder = folder
        self._bundles = BundleStore(folder, fetcher, fetch_timeout_s)
        self._inference = inference
        self._tasks = tasks
        self._timeout_s = fetch_timeout_s
        self._trace = trace
        self._changed = changed
        self._trust = trust
        self._settings = settings or DeploySettings()
        self._announced = AnnouncedPointers()
        self._news = Signal()
        self.executor = DeploymentExecutor(self._bundles, inference, clock, changed, self._news, trace)
        self.last_refusal = ""
        self.trouble: tuple[ModelPointer | None, LichenError] | None = None
        """The model that is not here yet, and why (``edge_agent.status.model_status``)."""

    @property
    def record(self) -> DeploymentRecord:
        """Installed, tried and rejected bundles."""
        return self.executor.record

    def report(self) -> TrialReport | None:
        """Report for ``up/state``."""
        return reported(self.record)

    def trial_wait(self) -> Wait | None:
        """What a trial waits for."""
        return None if self.record.trial is None else self.executor.wait(self.record.trial)

    async def on_pointer(self, route: Route, payload: bytes) -> None:
        """Handle a pointer; on ``down/model`` it is for this device alone. Empty: the topic was cleared."""
        own = route.kind is Kind.MODEL
        if payload:
            self.offer(decode(payload, ModelPointer), own=own)
        else:
            self.cleared(own=own)

    def offer(self, pointer: ModelPointer, *, own: bool = False) -> None:
        """Announce a model. ``own``: the pointer came on ``down/model`` and is for this device alone."""
        self._announced.store(pointer, own=own)
        self._news.set()

    def cleared(self, *, own: bool) -> None:
        """Forget the pointer of a topic that was cleared."""
        self._announced.clear(own=own)
        self._news.set()

    def task_changed(self) -> None:
        """Check all models against the new task: fits may have changed in both directions."""
        self._announced.refused.clear()
        if self._incompatibility() and self.executor.phase is DeploymentPhase.ON_TRIAL:
            self.executor.apply(Withdrawn())
        if why := self._incompatibility():
            self._inference.activate(None)
            self._inference.disabled_reason = f"no model for the new task: {why}"
        self._news.set()

    def task_ended(self) -> None:
        """The task was withdrawn: nothing predicts until one is announced."""
        if self.executor.phase is DeploymentPhase.ON_TRIAL:
            self.executor.apply(Withdrawn())
        self._inference.activate(None)
        self._inference.disabled_reason = "the task was withdrawn"

    def _incompatibility(self) -> str:
        model, work = self._inference.model, self._tasks.workspace
        if model is None or work is None:
            return ""
        try:
            require_compatible(model.manifest, work.task, work.modalities)
        except Refused as error:
            return error.detail
        return ""

    async def run(self) -> None:
        """Load installed models, and deploy announced ones, for ever."""
        if self._inference.available and (why := await self._inference.ready()):
            _log.error("inference_off", why=why)
        wait = _RETRY_S
        self._news.set()
        while True:
            await self._news.wait()
            work = self._tasks.workspace
            if work is None or not self._inference.available:
                continue
            trouble = self.trouble = await self._turn(work)
            self._changed.set()
            if trouble is None:
                wait = _RETRY_S
                continue
            pointer, error = trouble
            what = "the model" if pointer is None else f"version {pointer.version}"
            _log.warning("model_not_fetched", what=what, why=str(error), again_in_s=wait)
            self.say(f"{what} is not here yet: {error}", wait)
            await self._news.wait(wait)
            wait = min(_AGAIN_MOST_S, 2 * wait)
            self._news.set()

    async def _turn(self, work: TrainingData) -> tuple[ModelPointer | None, LichenError] | None:
        """Load the installed model, and follow the later pointer; if it is unsigned, the other topic's.

        Returns:
            The pointer to try again, and why.
        """
        trouble: tuple[ModelPointer | None, LichenError] | None = None
        declined: tuple[ModelPointer, LichenError] | None = None
        self._announced.reset_skipped()
        while True:
            pointer = self._announced.best
            try:
                with disk_errors_as_transient(self._folder):
                    await self._load_kept(work)
                    pointer = self._announced.best
                    if pointer is not None and not self._announced.is_refused(pointer):
                        await self._follow(pointer, work)
                        return trouble
            except (Refused, Transient) as error:
                if pointer is not None and isinstance(error, Refused) and error.reason is not Reason.EXPIRED:
                    self._refuse(pointer, error)
                    declined = declined or (pointer, error)
                else:
                    trouble = trouble or (pointer, error)
            if pointer is None or self._trust is None or self._trust.is_decided(pointer):
                break
            self._announced.skip(pointer)
        if declined is not None:
            self.executor.apply(PointerRejected(installed_bundle(declined[0], self._epoch), str(declined[1])))
            self._changed.set()
        return trouble

    def _refuse(self, pointer: ModelPointer, error: Refused) -> None:
        self._announced.refuse(pointer)
        self.last_refusal = str(error)
        self.why = f"version {pointer.version} was refused: {error}"
        _log.error("model_refused", detail="the old model stays", version=pointer.version, why=str(error))

    @property
    def _epoch(self) -> int | None:
        return None if self._trust is None else self._trust.epoch

    async def _follow(self, pointer: ModelPointer, work: TrainingData) -> None:
        if self._trust is not None:  # of the active model too: a missing signature must be noticed
            await self._trust.require(pointer)
        for command in self.executor.apply(Pointed(pointer, self._epoch)):
            match command:
                case NothingToDo(words):
                    self.why = words
                case TooOld(why):
                    hint = f"remove {self._folder} to accept older ones"
                    raise Refused(Reason.WRONG_BASE, f"{why}; {hint}")
                case FetchBundle():
                    await self._fetch(pointer, work)
                case _:
                    raise AssertionError(f"{command}: not of a pointer")

    async def _fetch(self, pointer: ModelPointer, work: TrainingData) -> None:
        self.say(f"fetching and checking version {pointer.version}", self._timeout_s)
        async with self.executor.coming:
            started = self._trace.wall()
            await self._bundles.fetch(pointer, work)
            if self._trace.on:
                self._trace.pulled(await self._read_intact(pointer.bundle.digest), started)
            if self._announced.best is not pointer:
                self.executor.tidy_soon()
                return  # a later pointer has come, and set the signal
            rules = self._settings.trial if pointer.trial is None else pointer.trial
            trial = Trial.model_validate(rules.model_dump())
            kept = installed_bundle(pointer, self._epoch)
            self.executor.apply(Fetched(kept, trial, rollout=pointer.trial is not None))
        await self._try(work)
        self.why, self.last_refusal = f"version {pointer.version} is on trial", ""

    async def _load_kept(self, work: TrainingData) -> None:
        """Load the models that should run and do not: the committed one, then the one on trial."""
        if not self.executor.begun:
            self.executor.apply(Started(self._settings.max_starts))
        if self._inference.model is None and self.executor.phase is not DeploymentPhase.ON_TRIAL:
            await self._load_steady(work)
        if self.executor.phase is DeploymentPhase.FETCHED:
            try:
                await self._try(work)
            except Refused as error:
                _log.error("trial_model_not_loaded", why=str(error))

    async def _load_steady(self, work: TrainingData) -> None:
        """Load the committed model, or the former one if that is damaged or does not fit."""
        for kept in (self.record.committed, self.record.before):
            if kept is None:
                continue
            try:
                require_compatible(await self._read_intact(kept.digest), work.task, work.modalities)
                self._inference.activate(await self._inference.load(self._folder / kept.digest))
            except Refused as error:
                _log.error("saved_model_not_loaded", model=kept.digest, why=error.detail)
            else:
                self._changed.set()
                return

    async def _read_intact(self, digest: str) -> BundleManifest:
        """Manifest of an undamaged bundle. Raises Refused."""
        try:
            return await asyncio.to_thread(read_manifest, self._folder / digest)
        except Refused as error:
            if error.reason in _DAMAGED:  # so that it is fetched again
                await asyncio.to_thread(self._bundles.remove, digest)
                self.executor.apply(Damaged(digest))
            raise

    async def _try(self, work: TrainingData) -> None:
        """Load the model on trial, after the record names it on disk. Raises Refused, Transient."""
        await self.executor.write()
        trial = self.record.trial
        if trial is None:
            return
        manifest = await self._read_intact(trial.digest)
        try:
            require_compatible(manifest, work.task, work.modalities)
        except Refused:
            self.executor.apply(Withdrawn())
            raise
        try:
            model = await self._inference.load(self._folder / trial.digest)
        except Refused as error:
            why = f"the model does not run here: {error.detail}"
            self.executor.apply(DoesNotRun(why))
            raise Refused(error.reason, why) from None
        now = self.record.trial
        if now is None or now.digest != trial.digest:  # withdrawn meanwhile
            model.close()
            return
        self.executor.apply(Loaded(model))
