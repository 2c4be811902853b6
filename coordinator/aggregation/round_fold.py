"""From a round's updates to a version: screen, fold; a guided round also weighs before and finishes after.

A guided round reads the journal twice: the worker evaluates each update on the labelled windows, and the fold
weights each by the result of all evaluations. Every step is a function of the journal, the version before and
the labelled windows: repeated after an interruption, it gives the same version.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

import numpy as np
import structlog

from coordinator.aggregation.device_weights import WeightReport, kept
from coordinator.aggregation.fold import UnusableUpdates, fold_screened, screen_round
from coordinator.aggregation.outlier_screen import Magnitudes
from coordinator.errors import contain_faults
from coordinator.storage.private_blobs import without_private_blobs
from coordinator.storage.update_journal import AcceptedUpdate
from coordinator.workers.jobs import Jobs
from models.aggregation.server_optimizer import model_of, rejoined
from models.contract import Blobs, Server, Tensors
from models.guided import DeviceWeights, GuidedServer
from models.privacy.noisy_fold import RoundNoise
from models.seeds import derive_round_seed
from models.tensors import flatten
from protocol.errors import Misconfigured, Refused
from protocol.frames.frame import Limits
from protocol.tasks.task import Task
from runtime.process.worker import WorkerFailed

LOOKS: Final = 256
"""Limit of updates in one view job: ``worker.timeout_s`` is for so many, not for a fleet."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class FoldResult:
    """Result of a round.

    Attributes:
        state: the next version, with the optimizer's moments.
        reference: for the next round's screen.
        weighed: for the operator; None if the round was not guided.
        clip: of the next round, if it adapts (``privacy.adaptive_clip``).
    """

    state: Blobs
    reference: Mapping[str, float]
    weighed: WeightReport | None = None
    clip: float | None = None


def guiding(server: Server) -> GuidedServer | None:
    """The server half, if its method is ``guided``."""
    return cast("GuidedServer", server) if hasattr(server, "weigh") else None


def finish_seed(task: Task, round_: int) -> int:
    """Key of the coordinator's own training in a round; no device has a name like that."""
    return derive_round_seed(task.seed, round_, "(coordinator)")


@dataclass(frozen=True)
class RoundUpdates:
    """What both passes over a round's updates read.

    Attributes:
        task: what is learned.
        round: its number.
        entries: accepted updates, in any order.
        limits: what an update may need.
        noise: of a task with a table ``[privacy]``.
    """

    task: Task
    round: int
    entries: Sequence[AcceptedUpdate]
    limits: Limits
    noise: RoundNoise | None = None


class FoldRunner(Protocol):
    """Runs the two passes over a round's updates; see :mod:`coordinator.aggregation.fold`."""

    views_a_job: int
    """Limit of updates in one view job."""

    async def screen(
        self, updates: RoundUpdates, before: Mapping[str, float], known: Mapping[str, Magnitudes]
    ) -> dict[str, float]:
        """As :func:`coordinator.aggregation.fold.screen_round`."""

    async def fold(
        self, server: Server, updates: RoundUpdates, state: Blobs, weighing: DeviceWeights | None
    ) -> Blobs:
        """As :func:`coordinator.aggregation.fold.fold_screened`."""


class LocalFolds:
    """Folds in a thread of this process; see :class:`FoldRunner`."""

    views_a_job = LOOKS

    async def screen(
        self, updates: RoundUpdates, before: Mapping[str, float], known: Mapping[str, Magnitudes]
    ) -> dict[str, float]:
        """See :class:`FoldRunner`."""
        its = updates
        return await asyncio.to_thread(screen_round, its.task, its.entries, its.limits, before, known)

    async def fold(
        self, server: Server, updates: RoundUpdates, state: Blobs, weighing: DeviceWeights | None
    ) -> Blobs:
        """See :class:`FoldRunner`."""
        its = updates
        return await asyncio.to_thread(
            fold_screened, server, its.task, its.round, state, its.entries, its.limits, weighing, its.noise
        )


class RoundFold:
    """Makes versions from updates.

    Args:
        server: the method's server half.
        task: what is learned.
        jobs: run the worker's part of a guided round.
        folds: run the passes over the updates; None: in a thread.
    """

    def __init__(self, server: Server, task: Task, jobs: Jobs, folds: FoldRunner | None = None) -> None:
        self._folds = folds or LocalFolds()
        self._server = server
        self._guided = guiding(server)
        self._task = task
        self._jobs = jobs
        self._looked: tuple[int, dict[str, Tensors]] = (-1, {})
        """The current round, and views by the update's digest: a repeated attempt reuses them."""
        self._at_once = self._folds.views_a_job
        """Reduced after a failed job, until the next start: if the time is too short for many, it suffices
        for some."""

    async def fold(  # noqa: PLR0917 - as of ``coordinator.aggregation.fold``
        self,
        round_: int,
        state: Blobs,
        entries: Sequence[AcceptedUpdate],
        limits: Limits,
        before: Mapping[str, float],
        known: Mapping[str, Magnitudes],
        published: Callable[[], Awaitable[Blobs]],
        noise: RoundNoise | None = None,
    ) -> FoldResult:
        """Make the next version.

        Args:
            round_: number of the round.
            state: the exact values of the version that the updates start from, with moments.
            entries: accepted updates, in any order.
            limits: what an update may need.
            before: the last round's reference.
            known: update's digest -> its norms, measured on arrival.
            published: reads that version's model as devices hold it, for views.
            noise: of a task with a table ``[privacy]``.

        Raises:
            UnusableUpdates: some cannot be screened, viewed or folded; nothing was made.
            LichenError, OSError: the worker failed, or the disk cannot be read.
        """
        updates = RoundUpdates(self._task, round_, entries, limits, noise)
        reference = await self._folds.screen(updates, before, known)
        # with [privacy] all devices weigh alike: no update is looked at
        weighing = None if self._task.privacy else await self._weighed(updates, published)
        folded = await self._folds.fold(self._server, updates, state, weighing)
        if weighing is None:
            return await self.finish(round_, folded, reference)
        for words in weighing.warnings:
            log.warning("weighing", round=round_, why=words)
        return await self._trained(round_, folded, reference, weighing)

    async def finish(self, round_: int, folded: Blobs, reference: Mapping[str, float]) -> FoldResult:
        """The version of a fold without weights: a guided method trains on its labelled windows.

        Args:
            round_: number of the round.
            folded: the fold's version, with moments.
            reference: of the last round's screen.

        Where that training cannot be done, the version has the fold's parts alone, with a warning: no update
        was looked at, so none can be refused for it, and the next round must be able to mend it.

        Raises:
            LichenError, OSError: the worker failed.
        """
        if self._guided is None:
            return FoldResult(folded, reference)
        try:
            return await self._trained(round_, folded, reference, DeviceWeights({}))
        except Misconfigured as error:
            words = f"not trained on the labelled windows, so only the devices' parts are new: {error}"
        log.error("round_not_finished", round=round_, why=words)
        return FoldResult(folded, reference, kept(DeviceWeights({}, warnings=(words,)), {}))

    async def _trained(
        self, round_: int, folded: Blobs, reference: Mapping[str, float], weighing: DeviceWeights
    ) -> FoldResult:
        model = model_of(folded)
        made, metrics = await self._finished(round_, without_private_blobs(self._task, model))
        weighed = await asyncio.to_thread(kept, weighing, metrics)
        return FoldResult(rejoined({**model, **made}, folded), reference, weighed)

    async def _weighed(
        self, updates: RoundUpdates, published: Callable[[], Awaitable[Blobs]]
    ) -> DeviceWeights | None:
        """Weights from the views of all updates; None if the method uses none."""
        if self._guided is None:
            return None
        if self._looked[0] != updates.round:
            self._looked = (updates.round, {})
        known = self._looked[1]
        new = [entry for entry in updates.entries if entry.digest not in known]
        refused: dict[str, Refused] = {}
        model = without_private_blobs(self._task, await published()) if new else {}
        while new:
            part, new = new[: self._at_once], new[self._at_once :]
            views, why = await self._look(model, part, updates.limits)
            known |= {entry.digest: views[entry.device] for entry in part if entry.device in views}
            refused |= why
        if refused:
            raise UnusableUpdates(refused)
        seen = {entry.device: known[entry.digest] for entry in updates.entries}
        return await asyncio.to_thread(self._weigh, self._guided, seen)

    async def _look(
        self, model: Blobs, part: Sequence[AcceptedUpdate], limits: Limits
    ) -> tuple[dict[str, Tensors], dict[str, Refused]]:
        """One view job; a failed one is repeated with fewer updates."""
        try:
            return await self._jobs.view(model, part, limits)
        except WorkerFailed:
            self._at_once = max(1, min(self._at_once, len(part)) // 2)
            raise

    def _weigh(self, server: GuidedServer, views: Mapping[str, Tensors]) -> DeviceWeights:
        with contain_faults(
            f"{self._task.method}'s weighing"
        ):  # caused by what peers sent: no reason to crash for ever
            return server.weigh(self._task, views)

    async def _finished(self, round_: int, model: Blobs) -> tuple[Blobs, dict[str, float]]:
        """The part that the worker trained, if it still is the same model."""
        made, metrics = await self._jobs.finish(round_, finish_seed(self._task, round_), model)
        old, new = flatten(model), flatten(made)
        wrong = next((n for n in sorted({*old, *new}) if not _fits(old.get(n), new.get(n))), None)
        if wrong is not None:
            raise Misconfigured(
                f"training on the labelled windows spoilt {wrong!r}: it is missing, of another shape or not "
                "finite; smaller learning rates in the task's config may help"
            )
        return made, metrics


def _fits(old: object, new: object) -> bool:
    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):
        return False
    return old.shape == new.shape and bool(np.isfinite(new).all())
