"""Executes the machine's slow commands, one at a time: make, fold, evaluate, export."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

import structlog

from coordinator.admission.quarantine import OFFENCES
from coordinator.aggregation import early_end
from coordinator.aggregation.current_model import CurrentModel
from coordinator.aggregation.device_weight_store import DeviceWeightStore
from coordinator.aggregation.fold import UnusableUpdates
from coordinator.aggregation.outlier_screen import Magnitudes
from coordinator.aggregation.reported_metrics import reported_metric_names, sound, weighted_mean
from coordinator.aggregation.round_fold import FoldResult, FoldRunner, RoundFold
from coordinator.aggregation.screen_baseline import ScreenBaseline
from coordinator.aggregation.secure.rounds import SecureRounds
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.errors import in_words
from coordinator.messaging.receipts import ReceiptSender
from coordinator.messaging.traffic import Traffic
from coordinator.privacy.account_store import AccountStore, account_of, why_last
from coordinator.privacy.noise_secret import NoiseSecret
from coordinator.round_machine.commands import Aggregate, Evaluate, Export, Initialise
from coordinator.round_machine.events import (
    EvaluationDone,
    ExportDone,
    RoundPhase,
    UpdatesLost,
    VersionMade,
    WorkFailed,
)
from coordinator.round_machine.retry_delay import retry_delay_s
from coordinator.rounds.driver import RoundDriver, WorkCommand, Write
from coordinator.secure_aggregation.report import lineage_of
from coordinator.storage.backup import is_due
from coordinator.storage.model_registry import ModelRegistry
from coordinator.storage.private_blobs import without_private_blobs
from coordinator.storage.update_journal import AcceptedUpdate, Journal
from coordinator.telemetry.round_tracing import RoundTracing
from coordinator.trust.signer import PointerSigner
from coordinator.workers.jobs import ExportLineage, Jobs
from models.contract import Blobs, Server
from models.privacy.adaptive_clip import WITHIN, next_clip
from models.privacy.noisy_fold import RoundNoise
from protocol.errors import LichenError, Misconfigured, Reason, Refused, Transient
from runtime.clock import Clock
from runtime.process.worker import WorkerFailed

_JOURNAL_RETRY_S: Final = 5.0
_MAX_MEASURES: Final = 100_000
NO_STEP: Final[Mapping[str, float]] = {}
"""Version 0 follows no other."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class RoundWorker:
    """The work on the newest version: ``model`` reads it.

    ``back_up`` copies the databases, in a thread; ``held`` returns further blobs to retain.
    """

    driver: RoundDriver
    server: Server
    jobs: Jobs
    journal: Journal
    registry: ModelRegistry
    deployment: BundleDelivery
    receipts: ReceiptSender
    traffic: Traffic
    clock: Clock
    model: CurrentModel
    keep_versions: int
    keep_updates: int
    budget_bytes: int
    references: ScreenBaseline
    weighings: DeviceWeightStore
    pointer_signer: PointerSigner
    back_up: Callable[[], None]
    held: Callable[[], AbstractContextManager[tuple[str, ...]]]
    tracing: RoundTracing
    noise: NoiseSecret
    accounts: AccountStore
    folds: FoldRunner | None = None
    secure: SecureRounds | None = None

    def __post_init__(self) -> None:
        self._folding = RoundFold(self.server, self.driver.task, self.jobs, self.folds)
        self._measures: dict[str, Magnitudes] = {}
        self._secured, self._backed_up_at = -1, -inf

    async def _shared(self) -> Blobs:
        """The same for jobs: without blobs of single devices."""
        return without_private_blobs(self.driver.task, await self.model.published())

    async def run(self) -> None:
        """Execute commands, for ever."""
        while True:
            command = await self.driver.work.get()
            try:
                await self._do(command)
            except (LichenError, OSError) as error:
                lasting = isinstance(error, Misconfigured) and not isinstance(error, Transient)
                if lasting and isinstance(command, Initialise):
                    raise  # a permanent failure: the operator must act
                passing = isinstance(error, (Transient, OSError)) and not isinstance(error, WorkerFailed)
                await self._fail(command, in_words(error), passing=passing)
            await self._back_up_and_prune()

    async def _back_up_and_prune(self) -> None:
        """A round is over: back the database up; only then remove the frames that it was made of."""
        state = self.driver.state
        over = state.phase is RoundPhase.DONE or state.round > state.version  # evaluated and exported, too
        if not over or state.version == self._secured:
            return
        try:
            if not await self._is_backup_due(state.phase):
                return
            self._backed_up_at = self.clock.now()
            await asyncio.to_thread(self.back_up)
            await asyncio.to_thread(self.journal.forget_before, state.version)
        except (LichenError, OSError) as error:
            log.warning("not_backed_up", version=state.version, why=str(error))
        else:
            self._secured = state.version

    async def _is_backup_due(self, phase: RoundPhase) -> bool:
        since = self.clock.now() - self._backed_up_at
        return phase is RoundPhase.DONE or is_due(await asyncio.to_thread(self.journal.database_bytes), since)

    async def _fail(self, command: WorkCommand, detail: str, *, passing: bool) -> None:
        """Report a failure; the machine tries again, or goes on without."""
        phase, version = _identity(command)
        failed = WorkFailed(phase=phase, version=version, detail=detail, passing=passing)
        given_up = retry_delay_s(self.driver.state, failed) is None
        log.error("work_failed", phase=phase.value, version=version, why=detail, given_up=given_up)
        recorded: Write | None = None
        if given_up:
            recorded = partial(self.registry.record_trouble, version, f"{phase.value}: {detail}")
        while True:
            try:
                await self.driver.post(failed, recorded)
            except Transient as error:  # the journal cannot be written either
                log.warning("not_journaled", why=str(error))
                await self.clock.sleep(_JOURNAL_RETRY_S)
            else:
                return

    async def _do(self, command: WorkCommand) -> None:
        match command:
            case Initialise():
                await self._made(0, FoldResult(await self.jobs.initial(), {}), ())
            case Aggregate():
                await self._aggregate(command)
            case Evaluate():
                evaluation = await self.jobs.evaluate(await self._shared())
                judged = replace(evaluation, metrics=sound(evaluation.metrics))
                record = partial(self.registry.record_evaluation, command.version, judged)
                log.info("judged", version=command.version, metrics=judged.metrics)
                ended = await asyncio.to_thread(self._why_end, command.version, judged.metrics)
                await self.driver.post(EvaluationDone(version=command.version, ended=ended), record)
            case Export():
                await self._export(command)

    def note(self, digest: str, measures: Magnitudes) -> None:
        """Store the norms of an update, measured when it was checked: the fold need not read it for them."""
        if len(self._measures) < _MAX_MEASURES:
            self._measures[digest] = measures

    def _why_end(self, version: int, metrics: Mapping[str, float]) -> str:
        """Why the rounds end with this version; empty: they go on."""
        task, rounds = self.driver.task, self.driver.task.rounds
        if spent := why_last(task, version):
            log.info("rounds_end_early", version=version, why=spent)
            return spent
        if not rounds.patience:
            return ""
        ended = early_end.reason([*self.registry.history(version), metrics], rounds)
        if ended:
            log.info("rounds_end_early", version=version, why=ended)
        return ended

    async def _made(
        self,
        version: int,
        made: FoldResult,
        devices: tuple[str, ...],
        step: Mapping[str, float] = NO_STEP,
        uncounted: Sequence[AcceptedUpdate] = (),
    ) -> None:
        """Publish a version and record it; ``uncounted``: updates of its round whose sum stayed closed."""
        parent = self.driver.state.manifest or None
        try:
            digest, _ = await asyncio.to_thread(self.registry.publish, version, made.state, parent)
        except ValueError as error:
            raise Transient(f"version {version} cannot be written as frames: {error}") from error
        traffic, wall = self.traffic.totals(), self.clock.wall()
        told = await asyncio.to_thread(self._reported, version, devices)
        account, ended = await asyncio.to_thread(account_of, self.driver.task, version, made.clip), ""
        closed = Refused(Reason.WRONG_ROUND, f"the sum of round {version} stays closed, and no update counts")
        if not self.driver.rules.evaluate:  # else its evaluation decides
            told = {**step, **told}
            ended = await asyncio.to_thread(self._why_end, version, told)

        def record() -> None:
            self.registry.record(version, digest, parent, devices, wall=wall, traffic=traffic, metrics=told)
            self.references.write(made.reference)
            if account is not None:
                self.accounts.write(version, account)
            if made.weighed is not None:
                self.weighings.write(version, made.weighed)
            for one in uncounted:
                self.journal.mark_lost(version, one.device, closed, wall)

        await self.driver.post(VersionMade(version=version, manifest=digest, ended=ended), record)
        for one in uncounted:
            self.receipts.send_refused(one.device, version, one.digest, closed)
        self._measures.clear()
        await asyncio.to_thread(self._tidy, version)

    def _reported(self, round_: int, devices: tuple[str, ...]) -> dict[str, float]:
        """The metrics that the devices of a round report, if the method uses them."""
        names = reported_metric_names(self.driver.task)
        return sound(weighted_mean(names, self.journal.told(round_, devices))) if names else {}

    async def _aggregate(self, command: Aggregate) -> None:
        round_ = command.round
        began = self.tracing.closing(round_, self.driver.state.manifest)
        state = await self.model.whole()
        entries = await asyncio.to_thread(self.journal.entries, round_, command.devices)
        limits, known = self.model.limits(state), dict(self._measures)
        before = await asyncio.to_thread(self.references.read)
        task, base = self.driver.task, self.driver.state.manifest
        noise = None
        if self.secure is None:  # else its devices add the noise of a table [privacy]
            private = await asyncio.to_thread(self.accounts.current, task, round_ - 1)
            noise = await asyncio.to_thread(self.noise.round_noise, task, round_, base, private)
        devices = tuple(entry.device for entry in entries)
        try:
            if self.secure is not None:
                opened, devices = await self.secure.fold(round_, state, entries, limits)
                made = FoldResult(opened, before)
                if devices or round_ >= self.driver.rules.rounds:  # the last one may train more
                    made = await self._folding.finish(round_, opened, before)
            else:
                made = await self._folding.fold(
                    round_, state, entries, limits, before, known, self.model.published, noise
                )
        except UnusableUpdates as unusable:
            await self.lose(round_, unusable)
            return
        if noise is not None and noise.privacy.adaptive_clip is not None:
            made = replace(made, clip=await asyncio.to_thread(self._next_clip, round_, noise, entries))
        step = await asyncio.to_thread(early_end.step, task, state, made.state)
        folded = self.tracing.wall()
        await self._made(round_, made, devices, step, () if devices or self.secure is None else entries)
        self.tracing.step("version", folded)
        await self.tracing.closed(began, len(entries))

    def _next_clip(self, round_: int, noise: RoundNoise, entries: Sequence[AcceptedUpdate]) -> float:
        told = self.journal.told(round_, [entry.device for entry in entries])
        bits = [metrics.get(WITHIN, 0.0) for _, metrics in told]
        first = self.driver.task.privacy or noise.privacy
        return next_clip(noise, first.clip, bits, [entry.digest for entry in entries])

    async def lose(self, round_: int, unusable: UnusableUpdates) -> None:
        """Report accepted updates that cannot be counted as refused (docs/reliability.md)."""
        digests = {
            device: await asyncio.to_thread(self.journal.digest_of, round_, device)
            for device in unusable.lost
        }

        def mark() -> None:
            for device, refused in unusable.lost.items():
                self.journal.mark_lost(round_, device, refused, self.clock.wall())

        lost = unusable.lost
        again = tuple((d, lost[d].reason.value) for d in sorted(lost) if lost[d].reason in OFFENCES)
        event = UpdatesLost(round=round_, devices=tuple(sorted(lost)), refused=again)
        if not await self.driver.post(event, mark):
            return  # the round went on meanwhile: the updates that count in it were sound when folded
        await asyncio.to_thread(self._mark_void, round_, [d for d in digests.values() if d is not None])
        for device, refused in unusable.lost.items():
            log.error("accepted_update_unusable", device=device, round=round_, why=str(refused))
            self.receipts.send_refused(device, round_, digests[device], refused)

    def _mark_void(self, round_: int, digests: list[str]) -> None:
        with suppress(OSError, LichenError):  # only a rebuild of the database would need it
            for digest in digests:
                self.journal.mark_void(round_, digest)

    async def _export(self, command: Export) -> None:
        began = self.tracing.wall()
        parent = await self._bundle(command.version)
        exported = self.tracing.wall()
        await self.driver.post(ExportDone(version=command.version))
        await self.deployment.announce()
        self.tracing.exported(command.version, parent, began, exported)

    async def export_newest(self) -> None:
        """Once all rounds are over: make the missing bundles, and send devices their pointers."""
        await self._bundle(self.driver.state.version)
        await self.deployment.announce()

    async def _bundle(self, version: int) -> str | None:
        """Make the bundles of a version; the manifest of the version before."""
        metrics = await asyncio.to_thread(self.registry.metrics, version)
        row = await asyncio.to_thread(self.registry.row, version)
        parent = None if row is None else row["parent"]
        private = await asyncio.to_thread(self.accounts.read, version)
        options, devices = self.driver.task.secure_aggregation, () if row is None else row["devices"]
        secure = None if options is None or not devices else lineage_of(options, len(devices))
        lineage = ExportLineage(version, parent, self.driver.state.manifest, metrics, private, secure)
        await self.deployment.export(self.jobs, await self._shared(), lineage)
        return None if parent is None else str(parent)

    def _tidy(self, version: int) -> None:
        """Remove blobs of old versions and headers of old rounds; an error here fails no round."""
        with suppress(OSError, LichenError):
            with self.held() as graphs, self.pointer_signer.held() as vouchers:
                also = (*self.deployment.retained_digests(), *graphs, *vouchers)
                self.registry.collect(version, self.keep_versions, also)
            self.journal.forget_headers(version, self.keep_updates, self.budget_bytes)


def _identity(command: WorkCommand) -> tuple[RoundPhase, int]:
    match command:
        case Initialise():
            return RoundPhase.INITIALISING, 0
        case Aggregate():
            return RoundPhase.AGGREGATING, command.round
        case Evaluate():
            return RoundPhase.EVALUATING, command.version
        case Export():
            return RoundPhase.EXPORTING, command.version
