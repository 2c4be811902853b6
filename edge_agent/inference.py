"""Live windows or questions -> predictions, in one worker thread: the event loop never waits for a model.

Queue: at most ``MAX_BATCHES`` batches of windows or questions wait; when full the oldest is dropped and
counted, because a late prediction is worth less than a new one.
"""

import asyncio
import contextlib
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import structlog

from edge_agent.answers import Answered
from edge_agent.collect import Judged
from edge_agent.config import InferSettings
from edge_agent.graph_answers import Answers, Asked, stamped
from edge_agent.graph_model import GraphModel
from edge_agent.loading import Model, load
from edge_agent.model import LoadedModel
from edge_agent.personal import Personal
from edge_agent.private import PrivateTensors
from models.serve import shed_memory
from protocol.errors import Refused
from runtime.clock import Clock

_log = structlog.get_logger("edge_agent.inference")
MAX_BATCHES: Final = 64
Batch = Judged | Asked


class RotatingLines:
    """JSON lines in a file; at ``max_bytes`` it becomes ``<name>.1``, and the ``.1`` before goes."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max = max_bytes
        self._file: IO[str] | None = None
        self._size = 0
        self.failures = 0

    def write(self, lines: list[str]) -> None:
        """Append; a disk that refuses is counted and logged once, and tried again at the next call."""
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
                self._size = self._file.tell()
            text = "".join(f"{line}\n" for line in lines)
            self._file.write(text)
            self._file.flush()
            self._size += len(text)
            if self._size >= self._max:
                self.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                _log.error("predictions cannot be written", file=str(self._path), error=str(error))
            self.close()

    def close(self) -> None:
        """Close the file; what a full disk did not take is given up."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


class Inference:
    """Runs the model that :meth:`install` gave last.

    Args:
        settings: what to run, and where to write.
        clock: stamps predictions.
        private: what the device keeps of its own training; a write there counts from the next window on.
    """

    def __init__(self, settings: InferSettings, clock: Clock, private: PrivateTensors | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._waiting: deque[Batch] = deque()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "inference")
        self._output = (
            None if settings.output is None else RotatingLines(settings.output, settings.max_output_bytes)
        )
        self._model: Model | None = None
        self._personal = None if private is None else Personal(private)
        self._answers = None if private is None else Answers(private)
        self.available = settings.enabled
        """Whether a model could run here; False once the probe has failed."""
        self.off_because = "no model yet" if settings.enabled else "infer.enabled is false"
        """Why there is no inference, in words; empty when there is."""
        self.predictions = 0
        self.dropped = 0
        self.last: dict[str, Any] | None = None

    @property
    def model(self) -> Model | None:
        """What runs now."""
        return self._model

    async def load(self, folder: Path) -> Model:
        """Load a model in the worker thread, without running it yet. Raises Refused."""
        loop = asyncio.get_running_loop()
        model = await loop.run_in_executor(self._thread, load, folder, self._settings.threads)
        shed_memory()  # what fetching, unpacking and parsing it left behind
        return model

    def install(self, model: Model | None) -> None:
        """Run this model from the next window or question on."""
        self._model = model
        if model is not None:
            self.off_because = ""

    def offer(self, batch: Batch) -> None:
        """Take windows as they close, and questions as they come."""
        if self._model is None:
            return
        if len(self._waiting) >= MAX_BATCHES:
            oldest = self._waiting.popleft()
            self.dropped += len(oldest.windows if isinstance(oldest, Judged) else oldest.questions)
        self._waiting.append(batch)
        self._wake.set()

    async def run(self) -> None:
        """Predict for ever."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    batch, model = self._waiting.popleft(), self._model
                    if model is None or model.manifest.task != batch.task.name:
                        continue
                    try:
                        await loop.run_in_executor(self._thread, self._predict, model, batch)
                    except Refused as error:
                        self._model, self.off_because = None, str(error)
                        _log.error("inference stopped until another model comes", error=str(error))
        finally:
            self._thread.shutdown(wait=True)
            if self._output is not None:
                self._output.close()

    def _predict(self, model: Model, batch: Batch) -> None:
        """In the thread: run and write."""
        match batch, model:
            case Judged(), LoadedModel():
                lines = said = self._of_windows(model, batch)
            case Asked(), GraphModel():
                lines = self._of_questions(model, batch)
                said = [line for line in lines if "why" not in line]
            case _:  # the task has become another one in between
                return
        if said:
            self.predictions += len(said)
            self.last = said[-1]
        if lines and self._output is not None:
            self._output.write([json.dumps(line) for line in lines])

    def _of_questions(self, model: GraphModel, asked: Asked) -> list[dict[str, Any]]:
        if self._answers is None:
            return []
        lines = list(self._answers.lines(model, asked))
        wall, latency_s = self._clock.wall(), self._clock.now() - asked.at
        return [stamped(line, model.manifest, wall, latency_s) for line in lines]

    def _of_windows(self, model: LoadedModel, judged: Judged) -> list[dict[str, Any]]:
        windows, quality_BM = judged.windows, judged.quality.quality_BM
        if self._personal is not None:
            self._personal.refresh(model, judged.task)
        columns = judged.task.modality_names
        used_BM = windows.present_BM & (quality_BM >= self._settings.min_quality)
        reads_M = np.isin(columns, model.names)
        some = np.flatnonzero((used_BM & reads_M).any(axis=1))
        if not len(some):
            return []
        x = {name: windows.x[name][some] for name in model.names}
        answers = model.predict(x, used_BM[some], columns)
        said = Answered(judged, used_BM, some, answers, model.manifest, bool(model.own))
        return list(said.lines(self._clock.wall(), self._clock.now() - judged.closed))
