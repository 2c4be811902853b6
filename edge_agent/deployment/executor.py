"""Executes the state machine's commands: swaps at once, between two batches; writes until they succeed."""

import asyncio
from dataclasses import dataclass
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
from edge_agent.messaging.device_trace import NO_TRACE, DeviceTrace
from protocol.errors import Transient
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.waits import Wait

_log = structlog.get_logger(__name__)
_TICK_S: Final = 1.0
_RETRY_S: Final = 5.0
_REVIVE_S: Final = 300.0
"""Interval at which a model that was given up is tried again, seconds."""
_WRITE_EVERY_S: Final = 60.0
"""Interval at which trial metrics are written, seconds: a power cut loses at most this much of a trial."""


@dataclass(eq=False, repr=False)
class DeploymentExecutor:
    """One service, :meth:`run`, writes the record and watches a trial.

    Args:
        bundles: holds the record.
        inference: runs the models.
        clock: of deadlines.
        changed: set when the device has something to report.
        news: set when there is a model to load, or a trial ends.
        trace: records trials and commits.
    """

    bundles: BundleStore
    inference: Runner
    clock: Clock
    changed: Signal
    news: Signal
    trace: DeviceTrace = NO_TRACE

    def __post_init__(self) -> None:
        self._status = DeploymentStatus(read_record(self.bundles.folder))
        self._steady: Handle | None = None
        self._due = Signal()
        self._one_at_a_time = asyncio.Lock()
        self._unwritten = self._untidy = False
        self._written_at, self._since = self.clock.now(), self.clock.wall()
        self.coming = asyncio.Lock()
        """Held from the fetch of a bundle until the record names it."""
        self.begun = False
        """Whether ``Started`` was applied."""

    @property
    def record(self) -> DeploymentRecord:
        """Installed, tried and rejected bundles."""
        return self._status.record

    @property
    def phase(self) -> DeploymentPhase:
        """Phase of the state machine."""
        return self._status.phase

    def apply(self, event: Event) -> list[Command]:
        """Apply an event, and do at once what can be done. Returns the other commands."""
        before = self._status
        self.begun = self.begun or isinstance(event, Started)
        self._status, commands = apply(before, event)
        left = [command for command in commands if not self._did(command)]
        if self._unwritten or self._untidy:
            self._due.set()
        if before.phase is not self._status.phase:
            self._report_change()
        return left

    def _did(self, command: Command) -> bool:
        match command:
            case Swap(model):
                self._steady = self.inference.model
                self.inference.shadow(self._steady)
                self.inference.activate(model)
            case Action.KEEP:
                self._steady = None
                self.inference.shadow(None)
            case Action.BACK:
                self._back()
            case Action.WRITE:
                self._unwritten = True
            case Action.TIDY:
                self._untidy = True
            case Action.LOAD:
                self.news.set()
            case _:
                return False
        return True

    def _back(self) -> None:
        """Activate the former model from the next batch on; end the model on trial."""
        steady, self._steady = self._steady, None
        self.inference.activate(steady)
        self.inference.shadow(None)
        if steady is None:
            self.inference.disabled_reason = "the model on trial was rolled back, and there is no former one"

    def _report_change(self) -> None:
        """Log and signal a change of phase."""
        self._since = self.clock.wall()
        report = reported(self.record)
        if self.trace.on:
            self.trace.phase(self.phase, "" if report is None else report.phase)
        if report is not None:
            said: dict[str, object] = {"why": report.why} if report.why else {}
            said |= report.measures
            _log.info("model_changed", version=report.version, step=self.phase, result=report.phase, **said)
        self.changed.set()
        self._due.set()
        self.news.set()

    def observe(self, seen: BatchObservation) -> None:
        """Count a batch that was answered or failed; runs on the event loop."""
        if self.phase is DeploymentPhase.ON_TRIAL:
            self.apply(seen)

    async def run(self) -> None:
        """Write, tidy and watch, for ever."""
        since = self.clock.now()
        while True:
            on_trial = self.phase is DeploymentPhase.ON_TRIAL
            await self._due.wait(_TICK_S if on_trial or self._unwritten or self._untidy else _REVIVE_S)
            now = self.clock.now()
            self._check_active(now - since if on_trial else 0.0)
            since = now
            try:
                await self.write()
            except Transient as error:
                _log.warning("deployment_record_not_written", why=str(error), again_in_s=_RETRY_S)
                await self.clock.sleep(_RETRY_S)
            else:
                await self._tidy()

    def _check_active(self, seconds: float) -> None:
        """Check the active model."""
        model = self.inference.model
        trial = self.record.trial
        if trial is None or self.phase is not DeploymentPhase.ON_TRIAL:
            if model is None and self.inference.available:
                self.news.set()
        elif model is None or model.digest != trial.digest:
            self.apply(Crashed(self.inference.disabled_reason or "it no longer runs"))
        else:
            self.apply(DeploymentTick(seconds))
            if self.clock.now() - self._written_at >= _WRITE_EVERY_S:
                self._unwritten = True

    async def write(self) -> None:
        """Write the record if it has changed. Raises Transient."""
        async with self._one_at_a_time:
            if not self._unwritten:
                return
            self._unwritten = False
            try:
                await asyncio.to_thread(self.bundles.write, self.record)
            except BaseException:
                self._unwritten = True
                raise
            self._written_at = self.clock.now()
            if self.trace.on:
                self.trace.written()

    def tidy_soon(self) -> None:
        """Schedule a tidy: a bundle is not needed any more."""
        self._untidy = True
        self._due.set()

    async def _tidy(self) -> None:
        """Remove unused bundles; later, while a bundle arrives that the record does not name yet."""
        if self._untidy and not self._unwritten and not self.coming.locked():
            async with self.coming:
                self._untidy = False
                await asyncio.to_thread(self.bundles.tidy, self.record)

    def wait(self, trial: TrialBundle) -> Wait:
        """The model on trial, and what the trial still needs."""
        seen, rules = trial.measures, trial.rules
        words = f"version {trial.version} is on trial: {seen.windows} of {rules.windows} answers"
        if seen.errors:
            words += f", {seen.errors} without one"
        if not seen.windows + seen.errors:
            return Wait("trial", words, self._since, None, "until the first window or question comes")
        left = max(0.0, rules.deadline_s - trial.ran_s)
        return Wait(
            "trial", words, self._since, self.clock.wall() + left, "it is judged by the answers so far"
        )

    async def stop(self) -> None:
        """Write at the agent's normal end; a start that was not counted yet is not subtracted."""
        if self.begun:
            self.apply(Stopped())
        try:
            await self.write()
        except Transient as error:
            _log.warning("deployment_record_not_written", why=str(error))
