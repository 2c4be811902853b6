"""Labels of the present task's windows: lists, proposals, label, undo. Used in one event loop.

Nothing is computed unless somebody asks. A request reads at most twice ``_POOL`` stored windows (and
``_MAX_READ_BYTES``) in a thread, and asks the active model about those that it has not predicted yet, a few
at a time, between two batches of live windows.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.service import Inference
from edge_agent.inference.serving.served_kinds import ServedWindows
from edge_agent.inference.serving.served_model import PredictionFailed
from edge_agent.labels import proposals
from edge_agent.labels.requests import (
    GiveLabel,
    LastLines,
    ListWindows,
    Live,
    Propose,
    Request,
    ShowWindow,
    SkipWindow,
    UndoLabel,
)
from edge_agent.windows import window_labels
from edge_agent.windows.collector import Collector
from edge_agent.windows.live.frame_views import frame_view
from edge_agent.windows.live.live_signal import MAX_CHANNELS, MAX_POINTS
from edge_agent.windows.rows import as_set, whole_bytes
from edge_agent.windows.store import WindowStore
from edge_agent.windows.window_labels import GivenLabel, StoredWindow, class_of
from edge_agent.windows.workspace import WindowWorkspace
from models.contract import WindowSet
from protocol.errors import Reason, Refused, Transient
from protocol.tasks.task import LABEL, Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.waits import StatusPart

_POOL: Final = 256
"""Candidates, and labelled windows that they are compared with: the newest."""
_MAX_READ_BYTES: Final = 32 * 1024 * 1024
_AT_ONCE: Final = 16
"""Windows of one call of the model."""
_CACHED: Final = 2048
_SKIPPED: Final = 4096
_LEAST_QUALITY: Final = 0.5
"""A window with a modality below it is never proposed."""
_TICK_S: Final = 0.25


@dataclass(eq=False, repr=False)
class LabelService(StatusPart):
    """Answers the local interface.

    Args:
        collector: has the present task's windows, and the live signal.
        inference: has the active model.
        clock: stamps labels.
        changed: set at each label: the device has other windows to learn from.
        min_quality: ``infer.min_quality``; a modality below it counts as missing.
    """

    collector: Collector
    inference: Inference
    clock: Clock
    changed: Signal
    min_quality: float

    def __post_init__(self) -> None:
        self._one = asyncio.Lock()  # one computation at a time, whoever asks
        self._skipped: dict[str, None] = {}
        self._predicted: dict[str, NDArray[np.float32]] = {}
        self._predicted_by: str | None = None
        self.given = 0

    def status(self) -> dict[str, Any]:
        """How many labels were given since the start."""
        return {"labels_given": self.given}

    async def answer(self, request: Request) -> dict[str, Any]:
        """Do what is asked, and answer in JSON values.

        Raises:
            Refused: it is not possible, in words for the person who asks.
            Transient: it may be later.
        """
        work, store = self._stored()
        async with self._one:
            match request:
                case ListWindows():
                    return await self._list(work, store, request.count)
                case Propose():
                    return await self._propose(work, store, request.count)
                case ShowWindow():
                    return await asyncio.to_thread(_shown, work.task, store, request.window)
                case GiveLabel():
                    return await self._label(work.task, store, request)
                case UndoLabel():
                    given = await asyncio.to_thread(window_labels.undo, store, request.window)
                    return self._changed(work.task, given)
                case SkipWindow():
                    await asyncio.to_thread(window_labels.find, store, request.window)
                    self._skipped[request.window] = None
                    for name in [*self._skipped][:-_SKIPPED]:
                        del self._skipped[name]
                    return {"window": request.window}
                case Live() | LastLines():
                    raise Refused(Reason.MALFORMED, f"{request.do} is not about stored windows")

    async def live(self) -> AsyncGenerator[dict[str, Any], None]:
        """Messages with samples, windows, and the last prediction if it is new; without end.

        Raises:
            Refused: too many look already.
        """
        with self.collector.live.viewer() as viewer:
            count = -1
            while True:
                message = viewer.take()
                if self.inference.predictions != count:
                    count, message["prediction"] = self.inference.predictions, self.inference.last
                yield message
                await self.clock.sleep(_TICK_S)

    def _stored(self) -> tuple[WindowWorkspace, WindowStore]:
        work = self.collector.workspace
        if work is None:
            raise Transient("no task on windows is known to this device yet: there is nothing to label")
        return work, window_labels.require_store(work.store)

    async def _label(self, task: Task, store: WindowStore, request: GiveLabel) -> dict[str, Any]:
        if request.label not in task.labels:
            known = ", ".join(task.labels)
            words = f"{request.label!r} is no class of task {task.name}; its classes are {known}"
            raise Refused(Reason.OUT_OF_BOUNDS, words)
        y, at = task.labels.index(request.label), self.clock.wall()
        given = await asyncio.to_thread(window_labels.label, store, request.window, y, at, request.by)
        return self._changed(task, given)

    def _changed(self, task: Task, given: GivenLabel) -> dict[str, Any]:
        self.given += 1
        self.changed.set()
        return {
            "window": given.window,
            "label": _word(task, given.y),
            "before": _word(task, given.was),
            "at": given.at,
            "by": given.by,
        }

    async def _list(self, work: WindowWorkspace, store: WindowStore, count: int) -> dict[str, Any]:
        task = _alone(work.task)
        found = await asyncio.to_thread(window_labels.newest, store, min(count, _limit(task)))
        windows = await asyncio.to_thread(as_set, task, [one.row for one in found])
        p_BK, why = await self._predictions(task, found, windows)
        entries = [_entry(task, one, None if p_BK is None else p_BK[b]) for b, one in enumerate(found)]
        return {"task": task.name, "labels": list(task.labels), "windows": entries, "no_prediction": why}

    async def _propose(self, work: WindowWorkspace, store: WindowStore, count: int) -> dict[str, Any]:
        task = _alone(work.task)
        limit = _limit(task)
        least = max(_LEAST_QUALITY, self.min_quality)

        def read() -> tuple[list[StoredWindow], WindowSet]:
            stored = [
                *window_labels.newest(store, limit, labelled=False),
                *window_labels.newest(store, limit, labelled=True),
            ]
            windows = as_set(task, [one.row for one in stored])
            good_B = proposals.is_good(windows.quality_BM, windows.present_BM, least)
            keep = [
                b
                for b, one in enumerate(stored)
                if class_of(one.row) is not None or (good_B[b] and one.name not in self._skipped)
            ]
            stored = [stored[b] for b in keep]
            return stored, as_set(task, [one.row for one in stored])

        stored, windows = await asyncio.to_thread(read)
        p_BK, why = await self._predictions(task, stored, windows)
        count_new = sum(class_of(one.row) is None for one in stored)

        def chosen() -> list[dict[str, Any]]:
            signal_BF = proposals.signal_features(windows.x, windows.present_BM)
            features_BF = proposals.features(p_BK, signal_BF)
            new_p_BK = None if p_BK is None else p_BK[:count_new]
            found = proposals.choose(new_p_BK, features_BF[:count_new], features_BF[count_new:], count)
            entries = []
            for one in found:
                p_K = None if p_BK is None else p_BK[one.index]
                entry = _entry(task, stored[one.index], p_K)
                entries.append(entry | {"reason": proposals.reason(one, p_K, task.labels)})
            return entries

        asked = await asyncio.to_thread(chosen) if count_new else []
        return {"task": task.name, "labels": list(task.labels), "windows": asked, "no_prediction": why}

    async def _predictions(
        self, task: Task, stored: Sequence[StoredWindow], windows: WindowSet
    ) -> tuple[NDArray[np.float32] | None, str]:
        """Probabilities ``p_BK`` by the active model; or None and the reason."""
        model = self.inference.model
        if not isinstance(model, ServedWindows):
            return None, self.inference.disabled_reason or "the model is not of windows"
        if model.manifest.task != task.name or not {*model.names} <= {*task.modality_names}:
            return None, f"the model is of task {model.manifest.task}"
        if self._predicted_by != model.digest:
            self._predicted, self._predicted_by = {}, model.digest
        order = [task.modality_names.index(name) for name in model.names]
        used_BM = windows.present_BM & (windows.quality_BM >= self.min_quality)
        missing = [b for b, one in enumerate(stored) if one.name not in self._predicted]
        for at in range(0, len(missing), _AT_ONCE):
            some = missing[at : at + _AT_ONCE]
            x = {name: np.ascontiguousarray(windows.x[name][some]) for name in model.names}
            try:
                answers = await model.predict(x, used_BM[some][:, order], task)
            except PredictionFailed as error:
                return None, f"the model did not answer: {error}"
            p_BK = answers.get(LABEL)
            if p_BK is None or p_BK.shape[1] != len(task.labels):
                return None, "the model does not predict the task's label"
            self._predicted |= {stored[b].name: p_BK[row] for row, b in enumerate(some)}
        p_BK = np.array([self._predicted[one.name] for one in stored], np.float32)
        for name in [*self._predicted][:-_CACHED]:
            del self._predicted[name]
        return p_BK.reshape(len(stored), len(task.labels)), ""


def _alone(task: Task) -> Task:
    """The task without contexts: a person and the model's interface see the window alone."""
    return task.model_copy(update={"window": task.window.model_copy(update={"context_s": None})})


def _limit(task: Task) -> int:
    return max(1, min(_POOL, _MAX_READ_BYTES // (2 * whole_bytes(task))))


def _word(task: Task, y: int) -> str | None:
    return task.labels[y] if y >= 0 else None


def _entry(task: Task, one: StoredWindow, p_K: NDArray[np.float32] | None) -> dict[str, Any]:
    """A stored window, for people."""
    row, y = one.row, class_of(one.row)
    present_M = np.frombuffer(row.present, np.bool_)
    quality_M = np.frombuffer(row.quality, np.float32)
    names = task.modality_names
    said = None
    if p_K is not None:
        best = int(p_K.argmax())
        said = {"label": task.labels[best], "confidence": round(float(p_K[best]), 3)}
    return {
        "window": one.name,
        "at": row.start,
        "length_s": task.window.length_s,
        "label": None if y is None else task.labels[y],
        "prediction": said,
        "quality": {name: round(float(quality_M[m]), 3) for m, name in enumerate(names) if present_M[m]},
    }


def _shown(task: Task, store: WindowStore, name: str) -> dict[str, Any]:
    """The values of a window: by modality ``[channel][point]`` and the seconds between two points.

    Of images, vectors and texts the view of ``edge_agent.windows.live.frame_views``.
    """
    one, alone = window_labels.find(store, name), _alone(task)
    windows = as_set(alone, [one.row])
    found: dict[str, Any] = {}
    for m, modality in enumerate(alone.modalities):
        if windows.present_BM[0, m] and modality.framed:
            found[modality.name] = frame_view(modality, windows.x[modality.name][0].ravel())
        elif windows.present_BM[0, m]:
            x_CT = windows.x[modality.name][0][:MAX_CHANNELS]
            step = -(-x_CT.shape[1] // MAX_POINTS)
            found[modality.name] = {
                "step_s": step / modality.rate_hz,
                "unit": modality.unit,
                "v": [[float(f"{v:.6g}") for v in channel] for channel in x_CT[:, ::step].tolist()],
            }
    return {**_entry(alone, one, None), "signal": found}
