"""Carries out the machine's slow commands, one at a time: make, fold, judge, export."""

import asyncio
import contextlib
from functools import partial
from math import isfinite
from typing import Final

import structlog

from coordinator.aggregation import UnusableUpdates, fold_journal, limits_for
from coordinator.deployment import Deployment
from coordinator.jobs import Jobs, Lineage
from coordinator.journal import Journal
from coordinator.registry import Registry
from coordinator.rounds.driver import Driver, WorkCommand, Write
from coordinator.rounds.states import (
    Aggregate,
    Evaluate,
    EvaluationDone,
    Export,
    ExportDone,
    Initialise,
    Phase,
    UpdatesLost,
    VersionMade,
    WorkFailed,
)
from coordinator.telling import Teller
from coordinator.traffic import Traffic
from coordinator.trouble import in_words
from models.contract import Blobs, Evaluation, Server
from protocol.errors import LichenError, Misconfigured, Refused, Transient
from protocol.frame import Limits
from runtime.clock import Clock

_JOURNAL_RETRY_S: Final = 5.0
_NAME: Final = 64
_METRICS: Final = 128

log = structlog.get_logger(__name__)


class Workshop:
    """The global state in memory, and the work on it. ``current`` is what updates are checked against."""

    def __init__(
        self,
        *,
        driver: Driver,
        server: Server,
        jobs: Jobs,
        journal: Journal,
        registry: Registry,
        deployment: Deployment,
        teller: Teller,
        traffic: Traffic,
        clock: Clock,
        max_update_bytes: int,
        keep_versions: int,
    ) -> None:
        self._driver = driver
        self._server = server
        self._jobs = jobs
        self._journal = journal
        self._registry = registry
        self._deployment = deployment
        self._teller = teller
        self._traffic = traffic
        self._clock = clock
        self._max_update_bytes = max_update_bytes
        self._keep_versions = keep_versions
        self._loading = asyncio.Lock()
        self._loaded: tuple[str, Blobs] | None = None

    async def state(self) -> Blobs:
        """The newest version's tensors, read once a version.

        Raises:
            Transient: the registry cannot give them; the message says which blob is gone or damaged.
        """
        async with self._loading:
            manifest = self._driver.state.manifest
            if self._loaded is None or self._loaded[0] != manifest:
                self._loaded = None  # before the next one comes: never two whole models in memory for this
                try:
                    self._loaded = (manifest, await asyncio.to_thread(self._registry.state, manifest))
                except (KeyError, Refused) as error:
                    raise Transient(
                        f"version {manifest[:12]} cannot be read from the registry: {error}"
                    ) from error
            return self._loaded[1]

    def limits(self, state: Blobs) -> Limits:
        """What an update of this model may need."""
        return limits_for(state, self._max_update_bytes)

    async def run(self) -> None:
        """Work for ever."""
        while True:
            command = await self._driver.work.get()
            try:
                await self._do(command)
            except (LichenError, OSError) as error:
                if isinstance(error, Misconfigured) and isinstance(command, Initialise):
                    raise  # nothing can ever work: the operator must look
                await self._fail(command, in_words(error))

    async def _fail(self, command: WorkCommand, detail: str) -> None:
        """Tell the machine; it tries again, or goes on without."""
        phase, version = _identity(command)
        log.error("work_failed", phase=phase.value, version=version, why=detail)
        recorded: Write | None = None
        if phase in (Phase.EVALUATING, Phase.EXPORTING):
            recorded = partial(self._registry.record_trouble, version, f"{phase.value}: {detail}")
        while True:
            try:
                await self._driver.post(WorkFailed(phase=phase, version=version, detail=detail), recorded)
            except Transient as error:  # the journal cannot be written either
                log.warning("not_journaled", why=str(error))
                await self._clock.sleep(_JOURNAL_RETRY_S)
            else:
                return

    async def _do(self, command: WorkCommand) -> None:
        match command:
            case Initialise():
                await self._made(0, await self._jobs.initial(), ())
            case Aggregate():
                await self._aggregate(command)
            case Evaluate():
                evaluation = await self._jobs.evaluate(await self.state())
                judged = Evaluation(_sound(evaluation.metrics), evaluation.confusion_KK)
                record = partial(self._registry.record_evaluation, command.version, judged)
                log.info("judged", version=command.version, metrics=judged.metrics)
                await self._driver.post(EvaluationDone(version=command.version), record)
            case Export():
                await self._export(command)

    async def _made(self, version: int, state: Blobs, devices: tuple[str, ...]) -> None:
        parent = self._driver.state.manifest or None
        try:
            digest, _ = await asyncio.to_thread(self._registry.publish, version, state, parent)
        except ValueError as error:
            raise Transient(f"version {version} cannot be written as frames: {error}") from error
        traffic, wall = self._traffic.totals(), self._clock.wall()
        record = partial(self._registry.record, version, digest, parent, devices, wall=wall, traffic=traffic)
        await self._driver.post(VersionMade(version=version, manifest=digest), record)
        await asyncio.to_thread(self._tidy, version)

    async def _aggregate(self, command: Aggregate) -> None:
        state = await self.state()
        entries = await asyncio.to_thread(self._journal.entries, command.round, command.devices)
        task, limits = self._driver.task, self.limits(state)
        try:
            new = await asyncio.to_thread(
                fold_journal, self._server, task, command.round, state, entries, limits
            )
        except UnusableUpdates as unusable:
            await self._lose(command.round, unusable)
            return
        await self._made(command.round, new, tuple(entry.device for entry in entries))

    async def _lose(self, round_: int, unusable: UnusableUpdates) -> None:
        """Promise 1: an accepted update that cannot be counted is reported as refused."""
        digests = {
            device: await asyncio.to_thread(self._journal.digest_of, round_, device)
            for device in unusable.lost
        }

        def mark() -> None:
            for device, refused in unusable.lost.items():
                self._journal.mark_lost(round_, device, str(refused))

        await self._driver.post(UpdatesLost(round=round_, devices=tuple(sorted(unusable.lost))), mark)
        for device, refused in unusable.lost.items():
            log.error("accepted_update_unusable", device=device, round=round_, why=str(refused))
            self._teller.refuse(device, round_, digests[device], refused)

    async def _export(self, command: Export) -> None:
        state = self._driver.state
        metrics = await asyncio.to_thread(self._registry.metrics, command.version)
        row = await asyncio.to_thread(self._registry.row, command.version)
        parent = None if row is None else row["parent"]
        lineage = Lineage(command.version, parent, state.manifest, metrics)
        bundle = await self._jobs.export(await self.state(), lineage)
        await self._deployment.store_bundle(command.version, bundle.data, metrics)
        await self._driver.post(ExportDone(version=command.version))
        await self._deployment.announce()

    def _tidy(self, version: int) -> None:
        """Frames of folded rounds and blobs of old versions go; failing to tidy fails no round."""
        with contextlib.suppress(OSError, LichenError):
            self._journal.forget_before(version)
            self._registry.collect(version, self._keep_versions, self._deployment.kept())


def _sound(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that an announcement may carry: finite, not too many, with names that fit."""
    fit = [
        (name, float(value)) for name, value in metrics.items() if 0 < len(name) <= _NAME and isfinite(value)
    ]
    return dict(fit[:_METRICS])


def _identity(command: WorkCommand) -> tuple[Phase, int]:
    match command:
        case Initialise():
            return Phase.INITIALISING, 0
        case Aggregate():
            return Phase.AGGREGATING, command.round
        case Evaluate():
            return Phase.EVALUATING, command.version
        case Export():
            return Phase.EXPORTING, command.version
