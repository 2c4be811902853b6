"""What the machine decides is done here: swaps at once, between two batches; writes until they are done."""

import asyncio
from typing import Final

import structlog

from edge_agent.deployment.bundle_store import BundleStore, read_record
from edge_agent.deployment.events import (
    Action,
    Command,
    Crashed,
    DeploymentPhase,
    DeploymentStatus,
    DeploymentTick,
    Event,
    Started,
    Stopped,
    Swap,
)
from edge_agent.deployment.ports import Handle, Runner
from edge_agent.deployment.record import DeploymentRecord, TrialBundle, reported
from edge_agent.deployment.state_machine import apply
from edge_agent.inference.onnx_models.observation import BatchObservation
from protocol.errors import Transient
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.waits import Wait

_log = structlog.get_logger(__name__)
_TICK_S: Final = 1.0
_RETRY_S: Final = 5.0
_REVIVE_S: Final = 300.0
"""So often a model that was given up is tried once more."""
_WRITE_EVERY_S: Final = 60.0
"""Of what was measured: a power cut takes so much of a trial."""


class DeploymentExecutor:
    """One service, :meth:`run`: the writing, and the watch over a trial.

    Args:
        bundles: holds the book.
        inference: runs the models.
        clock: of deadlines.
        changed: set when the device has something to say.
        news: set when there is something to load, or a trial is over.
    """

    def __init__(
        self,
        bundles: BundleStore,
        inference: Runner,
        clock: Clock,
        changed: Signal,
        news: Signal,
    ) -> None:
        self._bundles = bundles
        self._inference = inference
        self._clock = clock
        self._changed = changed
        self._news = news
        self._standing = DeploymentStatus(read_record(bundles.folder))
        self._steady: Handle | None = None
        self._due = Signal()
        self._one_at_a_time = asyncio.Lock()
        self._unwritten = self._untidy = False
        self._written_at, self._since = clock.now(), clock.wall()
        self.coming = asyncio.Lock()
        """Held from the pulling of a bundle until the book names it."""
        self.begun = False
        """Whether ``Started`` was applied."""

    @property
    def book(self) -> DeploymentRecord:
        """What is kept, on trial, and was tried."""
        return self._standing.book

    @property
    def phase(self) -> DeploymentPhase:
        """Of the machine."""
        return self._standing.phase

    def apply(self, event: Event) -> list[Command]:
        """One step: what can be done at once is done. Returns what is left to do."""
        before = self._standing
        self.begun = self.begun or isinstance(event, Started)
        self._standing, commands = apply(before, event)
        left = [command for command in commands if not self._did(command)]
        if self._unwritten or self._untidy:
            self._due.set()
        if before.phase is not self._standing.phase:
            self._tell()
        return left

    def _did(self, command: Command) -> bool:
        match command:
            case Swap(model):
                self._steady = self._inference.model
                self._inference.shadow(self._steady)
                self._inference.install(model)
            case Action.KEEP:
                self._steady = None
                self._inference.shadow(None)
            case Action.BACK:
                self._back()
            case Action.WRITE:
                self._unwritten = True
            case Action.TIDY:
                self._untidy = True
            case Action.LOAD:
                self._news.set()
            case _:
                return False
        return True

    def _back(self) -> None:
        """The one before answers from the next batch on; the model on trial ends."""
        steady, self._steady = self._steady, None
        self._inference.install(steady)
        self._inference.shadow(None)
        if steady is None:
            self._inference.disabled_reason = "the model on trial went, and there is none before it"

    def _tell(self) -> None:
        """Whom it concerns."""
        self._since = self._clock.wall()
        report = reported(self.book)
        if report is not None:
            said: dict[str, object] = {"why": report.why} if report.why else {}
            said |= report.measures
            _log.info("model_changed", version=report.version, step=self.phase, result=report.phase, **said)
        self._changed.set()
        self._due.set()
        self._news.set()

    def observe(self, seen: BatchObservation) -> None:
        """A batch was answered; on the loop."""
        if self.phase is DeploymentPhase.ON_TRIAL:
            self.apply(seen)

    async def run(self) -> None:
        """Write, tidy, and watch, for ever."""
        since = self._clock.now()
        while True:
            on_trial = self.phase is DeploymentPhase.ON_TRIAL
            await self._due.wait(_TICK_S if on_trial or self._unwritten or self._untidy else _REVIVE_S)
            now = self._clock.now()
            self._look(now - since if on_trial else 0.0)
            since = now
            try:
                await self.written()
            except Transient as error:
                _log.warning("deployment_record_not_written", why=str(error), again_in_s=_RETRY_S)
                await self._clock.sleep(_RETRY_S)
            else:
                await self._tidy()

    def _look(self, seconds: float) -> None:
        """At what runs."""
        model = self._inference.model
        trial = self.book.trial
        if trial is None or self.phase is not DeploymentPhase.ON_TRIAL:
            if model is None and self._inference.available:
                self._news.set()
        elif model is None or model.digest != trial.digest:
            self.apply(Crashed(self._inference.disabled_reason or "it does not run any more"))
        else:
            self.apply(DeploymentTick(seconds))
            if self._clock.now() - self._written_at >= _WRITE_EVERY_S:
                self._unwritten = True

    async def written(self) -> None:
        """The book is on the disk, as it was when this was called, or later. Raises Transient."""
        async with self._one_at_a_time:
            if not self._unwritten:
                return
            self._unwritten = False
            try:
                await asyncio.to_thread(self._bundles.write, self.book)
            except BaseException:
                self._unwritten = True
                raise
            self._written_at = self._clock.now()

    def tidy_soon(self) -> None:
        """There is a bundle that nobody needs."""
        self._untidy = True
        self._due.set()

    async def _tidy(self) -> None:
        """Later, where a bundle comes that the book does not name yet."""
        if self._untidy and not self._unwritten and not self.coming.locked():
            async with self.coming:
                self._untidy = False
                await asyncio.to_thread(self._bundles.tidy, self.book)

    def wait(self, trial: TrialBundle) -> Wait:
        """What is on trial, and what it still needs."""
        seen, rules = trial.measures, trial.rules
        words = f"version {trial.version} is on trial: {seen.windows} of {rules.windows} answers"
        if seen.errors:
            words += f", {seen.errors} without one"
        if not seen.windows + seen.errors:
            return Wait("trial", words, self._since, None, "until the first window or question comes")
        left = max(0.0, rules.deadline_s - trial.ran_s)
        return Wait("trial", words, self._since, self._clock.wall() + left, "it is judged by those that came")

    async def stop(self) -> None:
        """The agent ends in order; a start that was not counted yet is not taken back."""
        if self.begun:
            self.apply(Stopped())
        try:
            await self.written()
        except Transient as error:
            _log.warning("deployment_record_not_written", why=str(error))
