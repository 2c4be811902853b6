"""Evaluates each model that runs here on the held-back windows, and reports counts to the coordinator.

Limits: at most ``evaluation.max_windows`` windows and ``_MAX_READ_BYTES`` of them in memory, ``_AT_ONCE`` in
a call of the model, only while no live batch waits, and a pause of nine times each call: a tenth of one core.
A version is evaluated once, and again when a quarter more windows are held back.
"""

import asyncio
import hashlib
import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray

from edge_agent.config.agent import AgentSettings
from edge_agent.evaluation.reported import EVALUATION_FILE, SentEvaluation, SentEvaluations
from edge_agent.evaluation.scores import Scores, cells, count, evaluated_targets, labelled, report
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.served_kinds import ServedWindows
from edge_agent.inference.serving.served_model import PredictionFailed
from edge_agent.ports import TaskLink
from edge_agent.windows.collector import Collector
from edge_agent.windows.rows import RowKind, WindowRow, as_set, labelled_for, whole_bytes
from edge_agent.windows.store import WindowStore
from edge_agent.windows.stored_rows import newest_rows
from models.contract import WindowSet
from models.data import window_set
from models.data.holdout import HoldoutRule, WindowUse
from models.data.labels.targets import keys_of
from protocol.errors import Refused, Transient
from protocol.messages import Metric, encode
from protocol.tasks.evaluation import MAX_CELLS, DeviceEvaluation
from protocol.tasks.task import Target, Task
from protocol.topics import Kind, device_topic
from runtime.clock import Clock
from runtime.waits import StatusPart

_log = structlog.get_logger(__name__)
_AT_ONCE: Final = 16
_PAUSE: Final = 9.0
_MAX_READ_BYTES: Final = 32 * 1024 * 1024
_GROWTH: Final = 1.25
_BUSY_S: Final = 0.05


class EvaluationService(StatusPart):
    """One service.

    Args:
        settings: of the agent.
        link: to the coordinator.
        collector: has the windows of the present task.
        inference: has the models that run: the active one, and on trial the former one.
        clock: paces it.
    """

    def __init__(
        self,
        settings: AgentSettings,
        link: TaskLink,
        collector: Collector,
        inference: Inference,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._link = link
        self._collector = collector
        self._inference = inference
        self._clock = clock
        self._sent = SentEvaluations(settings.state_dir / EVALUATION_FILE)
        self._why = "" if settings.evaluation.enabled else "evaluation.enabled is false"
        self._failed: dict[str, int] = {}
        """Windows that were held back when a model's evaluation failed, by bundle."""

    async def run(self) -> None:
        """Evaluate for ever."""
        await asyncio.to_thread(self._sent.read)
        while True:
            if self._settings.evaluation.enabled:
                try:
                    await self._look()
                except (Transient, Refused) as error:
                    self._why = str(error)
                    _log.debug("evaluation_not_sent", why=self._why)
            await self._clock.sleep(self._settings.evaluation.every_s)

    def status(self) -> dict[str, Any]:
        """How many windows are held back, the last report, and why there is none."""
        newest = self._sent.newest
        return {
            "windows_held_back": self._held_back(),
            "evaluation": self._why or "waits for a model, or for a quarter more windows",
            "evaluated": None if newest is None else newest.report.model_dump(mode="json"),
        }

    def _stored(self) -> tuple[Task, WindowStore] | None:
        work = self._collector.workspace
        if work is None or not isinstance(work.store, WindowStore) or not work.store.rule.share:
            return None
        return work.task, work.store

    def _held_back(self) -> int:
        """Labelled windows that are held back. Does not touch the disk."""
        found = self._stored()
        return 0 if found is None else sum(_held_kinds(found[1]).values())

    async def _look(self) -> None:
        """Evaluate the models for which an evaluation is due."""
        stored = self._stored()
        if stored is None:
            self._why = "the task holds no windows back (holdout.share), or this device stores none"
            return
        task, store = stored
        held, least = self._held_back(), self._settings.evaluation.min_windows
        self._why = (
            f"{held} labelled windows are held back, at least {least} are needed" if held < least else ""
        )
        for model in (self._inference.model, self._inference.shadowing):
            if held < least or not self._link.connected:
                return
            if isinstance(model, ServedWindows) and _is_of(task, model):
                await self._evaluate(task, store, model, min(held, self._settings.evaluation.max_windows))

    async def _evaluate(self, task: Task, store: WindowStore, model: ServedWindows, held: int) -> None:
        """Evaluate and report, if it is due.

        Raises:
            Transient: the windows cannot be read now, or the report was not sent.
        """
        rule, targets = rule_digest(task, store.rule), evaluated_targets(task, model.manifest.predicted)
        sent = self._sent.get(model.digest)
        if sent is not None and sent.rule == rule and held < _GROWTH * sent.held_back:
            return
        if not targets or held < _GROWTH * self._failed.get(model.digest, 0):
            return
        windows = await asyncio.to_thread(store.read, _reader(store.rule, self._limit(task)))
        try:
            scores = await self._scores(task, targets, windows, model)
        except PredictionFailed as error:
            self._failed = {model.digest: held}
            self._why = f"version {model.manifest.version} did not answer: {error}"
            return
        found = report(scores, model.manifest.version, model.digest, self._settings.evaluation.min_windows)
        if found is None:
            self._failed = {model.digest: held}
            self._why = f"version {model.manifest.version}: too few windows with a modality that it reads"
            return
        await self._send(found)
        await asyncio.to_thread(self._sent.put, SentEvaluation(held_back=held, rule=rule, report=found))

    def _limit(self, task: Task) -> int:
        most = self._settings.evaluation.max_windows
        return max(1, min(most, _MAX_READ_BYTES // whole_bytes(without_context(task))))

    async def _scores(
        self, task: Task, targets: tuple[Target, ...], windows: WindowSet, model: ServedWindows
    ) -> Scores:
        scores: Scores = {}
        read_BR = read_by(task, model.names, windows, self._settings.infer.min_quality)
        used = np.flatnonzero(read_BR.any(axis=1) & labelled(targets, windows))
        room = MAX_CELLS - _AT_ONCE * len(targets)
        for end in range(
            len(used), 0, -_AT_ONCE
        ):  # the newest first: many classes may not leave room for all
            if cells(scores) > room:
                break
            while self._inference.waiting:
                await self._clock.sleep(_BUSY_S)
            some = used[max(0, end - _AT_ONCE) : end]
            part, began = window_set.select(windows, some), self._clock.now()
            x = {name: np.ascontiguousarray(part.x[name]) for name in model.names}
            answers = await model.predict(x, read_BR[some], task)
            count(scores, targets, part, answers, (model.names, read_BR[some]))
            await self._clock.sleep(_PAUSE * (self._clock.now() - began))
        return scores

    async def _send(self, found: DeviceEvaluation) -> None:
        topic = device_topic(self._settings.fleet, self._settings.device, Kind.METRIC)
        message = Metric(device=self._settings.device, metrics={}, evaluation=found)
        await self._link.publish(topic, encode(message))
        _log.info("version_evaluated", version=found.version, windows=found.windows)


def _is_of(task: Task, model: ServedWindows) -> bool:
    return model.manifest.task == task.name and {*model.names} <= {*task.modality_names}


def without_context(task: Task) -> Task:
    """The task as models see it: a bundle reads the window alone."""
    return task.model_copy(update={"window": task.window.model_copy(update={"context_s": None})})


def rule_digest(task: Task, rule: HoldoutRule) -> str:
    """Changes if other windows are held back, or they are labelled for other targets."""
    targets = [target.model_dump() for target in task.objectives]
    return hashlib.sha256(repr((rule, targets)).encode()).hexdigest()


def read_by(task: Task, names: tuple[str, ...], windows: WindowSet, min_quality: float) -> NDArray[np.bool_]:
    """Which modalities a model reads in each window, as inference decides it: ``(B, R)``."""
    columns = [task.modality_names.index(name) for name in names]
    return np.asarray((windows.present_BM & (windows.quality_BM >= min_quality))[:, columns])


def held_back(task: Task, rule: HoldoutRule, rows: Iterator[WindowRow], limit: int) -> WindowSet:
    """The newest labelled windows that are held back, the oldest first.

    Args:
        task: of the rows.
        rule: decides.
        rows: stored windows, the newest first.
        limit: maximal number.
    """
    keys = keys_of(task)
    found = (
        row
        for row in rows
        if rule.side(row.start) is WindowUse.HOLDOUT and labelled_for(row.y, row.targets, keys)
    )
    return as_set(without_context(task), [*islice(found, limit)][::-1])


def _reader(rule: HoldoutRule, limit: int) -> Any:
    def ask(db: sqlite3.Connection, task: Task) -> WindowSet:
        return held_back(task, rule, newest_rows(db, labelled_alone=True), limit)

    return ask


def _held_kinds(store: WindowStore) -> dict[RowKind, int]:
    kinds = store.snapshot().kinds.items()
    return {kind: n for kind, n in kinds if kind.side is WindowUse.HOLDOUT and kind.labelled}
