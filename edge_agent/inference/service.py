"""Live windows or questions -> predictions, by a model in a process of its own (``inference.serving``).

ONNX Runtime is not in this process: a model's memory, faults and leaks are its own process's, and end with it
when another model becomes active. The event loop never waits for a model or a disk. With ``infer.isolation =
"none"`` the model is in this process, and the loop waits at most 5 ms for it.

Queue: at most ``MAX_BATCHES`` batches of windows or questions wait; when full the oldest is dropped and
counted, because a late prediction is worth less than a new one.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.config.agent import InferSettings
from edge_agent.inference.batches import Batch, ModelInput, QuestionBatch, WindowBatch
from edge_agent.inference.latency import Latency
from edge_agent.inference.onnx_models.observation import Answers, BatchObservation, rows
from edge_agent.inference.providers.accelerators import Accelerators
from edge_agent.inference.question_answers import NameIndex
from edge_agent.inference.rotating_log import RotatingLines
from edge_agent.inference.serving.served_kinds import Model, ServedCompletion, ServedWindows
from edge_agent.inference.serving.served_model import PredictionFailed
from edge_agent.inference.serving.start import host_of, start_model
from edge_agent.inference.serving.variants.benchmark import RecentWindows
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.storage.private_tensors import PrivateTensors
from edge_agent.windows.quality.meter import ScoredWindows
from models.worker.job_loop import trim_memory
from protocol.bundle import BundleManifest
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.waits import StatusPart

_log = structlog.get_logger(__name__)
MAX_BATCHES: Final = 64
MAX_DEATHS: Final = 3
"""PredictionFailed batches in a row after which a model is given up."""
_SHADOWED: Final = MAX_BATCHES // 4
"""With more waiting batches the shadow is skipped, ..."""
_QUICK: Final = 0.1
"""... unless it takes at most this share of the model's time."""
Publish = Callable[[list[dict[str, Any]], BundleManifest], None]
Observe = Callable[[BatchObservation], None]


class Inference(StatusPart):
    """Runs the model given to :meth:`activate` last, and beside it the one given to :meth:`shadow`.

    Args:
        settings: what to run, and where to write.
        clock: stamps predictions.
        private: the device's private tensors; a change counts from the next window on.
        zygote: starts model processes; None: one of its own, started when first needed.
        accelerators: of this device; None: no compiled model is kept.
        ends_zygote: with :meth:`close`; False if other tasks of the device use it.
    """

    def __init__(
        self,
        settings: InferSettings,
        clock: Clock,
        private: PrivateTensors | None = None,
        zygote: ZygoteClient | None = None,
        accelerators: Accelerators | None = None,
        *,
        ends_zygote: bool = True,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._private = None if private is None else private.folder
        self._zygote = ZygoteClient() if zygote is None else zygote
        self._ends_zygote = ends_zygote
        self._accelerators = accelerators or Accelerators(settings, None, clock)
        self._host = host_of(self._zygote, settings)
        self._waiting: deque[Batch] = deque()
        self._wake = Signal()
        self._thread = ThreadPoolExecutor(1, "inference")
        self._output = (
            None if settings.output is None else RotatingLines(settings.output, settings.max_output_bytes)
        )
        self._model: Model | None = None
        self._shadow: Model | None = None
        self._shadow_s = 0.0
        """Seconds of the last batch."""
        self._busy: Model | None = None
        self._retired: list[Model] = []
        self._loaded: list[Model] = []
        self._names: NameIndex | None = None
        self._recent = RecentWindows()
        self.available = settings.enabled
        """Whether a model could run here; False after ONNX Runtime was found not to work."""
        self.disabled_reason = "no model yet" if settings.enabled else "infer.enabled is false"
        """Why there is no inference; empty if there is."""
        self.predictions = 0
        self.failures = 0
        """Batches without an answer."""
        self.dropped = 0
        self.last: dict[str, Any] | None = None
        self.latency, self.model_latency = Latency(), Latency()
        """From the end of a window, or the reading of a question, to the answer; and the model's part."""

    @property
    def model(self) -> Model | None:
        """The active model."""
        return self._model

    @property
    def shadowing(self) -> Model | None:
        """The shadow: it gets the same input, only for comparison."""
        return self._shadow

    @property
    def waiting(self) -> int:
        """Batches that wait for the model: other work gives way to them."""
        return len(self._waiting)

    async def ready(self) -> str:
        """Why no model can run here; empty if one can. Kept in :attr:`available`."""
        found = await self._zygote.ready()
        if found.why:
            self.available, self.disabled_reason = False, found.why
        return found.why

    async def load(self, folder: Path) -> Model:
        """Start the fastest variant of a model that agrees with float32 here, and run it once.

        A model that was loaded before and is not in use is ended.

        Raises:
            Refused: it is damaged, does not run, or crashes its process.
            Transient: no process can be started.
        """
        self._close_unused()
        model = await start_model(
            self._zygote, self._host, folder, self._settings, self._private, self._recent, self._accelerators
        )
        self._loaded.append(model)
        trim_memory()  # free what fetching, unpacking and parsing left behind
        return model

    def activate(self, model: Model | None) -> None:
        """Activate a model, or none, from the next batch on; end the former one unless it is the shadow."""
        before, self._model = self._model, model
        if model is not None:
            self.disabled_reason, model.failures = "", 0
        self._retire(before)

    def shadow(self, model: Model | None) -> None:
        """Run a model, or none, on the same batches; end the former shadow unless it is active."""
        before, self._shadow, self._shadow_s = self._shadow, model, 0.0
        self._retire(before)

    def enqueue(self, batch: Batch) -> None:
        """Queue windows as they close, and questions as they are read."""
        if self._model is None:
            if isinstance(batch, ScoredWindows) and self.available:
                self._recent.add(batch)
            return
        if len(self._waiting) >= MAX_BATCHES:
            oldest = self._waiting.popleft()
            self.dropped += len(oldest.windows if isinstance(oldest, ScoredWindows) else oldest.questions)
        self._waiting.append(batch)
        self._wake.set()

    async def run(self, *, publish: Publish | None = None, observe: Observe | None = None) -> None:
        """Predict for ever.

        Args:
            publish: called on the loop with the lines of each batch, and the manifest of the model.
            observe: called on the loop after each batch, also after a failed one.
        """
        try:
            while True:
                await self._wake.wait()
                while self._waiting:
                    batch, model = self._waiting.popleft(), self._model
                    if model is None or model.manifest.task != batch.task.name:
                        continue
                    inputs = self._model_input(batch, model)
                    if inputs is not None and inputs.count:
                        await self._take(inputs, model, publish, observe)
                    if isinstance(batch, ScoredWindows):
                        self._recent.add(batch)
        finally:
            await self.close()

    async def close(self) -> None:
        """End all processes."""
        self._model = self._shadow = self._busy = None
        self._close_unused()
        self._thread.shutdown(wait=True)
        if self._output is not None:
            self._output.close()
        if self._ends_zygote:
            await self._zygote.aclose()

    def status(self) -> dict[str, Any]:
        """The active model, and its figures."""
        model = self._model
        return {
            "predictions": self.predictions,
            "last_prediction": self.last,
            "model_choice": None if model is None else model.choice,
            "prediction_failures": self.failures,
            "predictions_dropped": self.dropped,
            "latency": self.latency.summary(),
            "model_latency": self.model_latency.summary(),
        }

    def _model_input(self, batch: Batch, model: Model) -> ModelInput | None:
        """The batch for the model; None if the task has changed meanwhile."""
        match batch, model:
            case ScoredWindows(), ServedWindows():
                return WindowBatch(batch, model, self._settings.min_quality)
            case _, ServedCompletion() if not isinstance(batch, ScoredWindows):
                if self._names is None or self._names.snapshot is not batch.snapshot:
                    self._names = NameIndex(batch.snapshot)
                return QuestionBatch(batch, self._names)
        return None

    async def _take(
        self, inputs: ModelInput, model: Model, publish: Publish | None, observe: Observe | None
    ) -> None:
        """Predict for one batch, write the lines, compare with the shadow, and report."""
        answers, latency_s, error = await self._answered(inputs, model)
        if answers is not None:
            since_s = self._clock.now() - inputs.since
            inputs.accept(answers)
            lines = await self._write(inputs, model, since_s)
            if lines and publish is not None:
                publish(lines, model.manifest)
            if inputs.count:
                self.latency.add(since_s, inputs.count)
                self.model_latency.add(latency_s, inputs.count)
        else:
            self.failures += 1
            _log.warning("model_did_not_answer", version=model.manifest.version, why=error)
        shadow = self._shadow if self._is_compared(model, latency_s) else None
        before, before_error = None, ""
        if shadow is not None:
            before, self._shadow_s, before_error = await self._answered(inputs, shadow)
        if observe is not None and (count := inputs.count or rows(before)):
            if not inputs.count:  # the device's embeddings no longer fit its knowledge graph
                answers, error = None, "it answers nothing, and the former model does"
            beside = None if before is None else shadow
            manifest, before_s = (None, None) if beside is None else (beside.manifest, self._shadow_s)
            about = (model.digest, model.manifest, count, latency_s, error, answers or {}, inputs.y_B)
            observe(BatchObservation(*about, before, before_s, manifest, before_error, inputs.read_NR))
        if model.failures >= MAX_DEATHS and model is self._model:
            self.disabled_reason = f"the model did not answer {model.failures} times in a row: {error}"
            _log.error("inference_stopped", error=self.disabled_reason)
            self._model = None
            self._retire(model)

    def _is_compared(self, model: Model, latency_s: float) -> bool:
        """Whether the shadow is called too: not if that makes more batches wait.

        A shadow that is fast compared with the model is always called, else a slow model would not show.
        """
        shadow = self._shadow
        if shadow is None or shadow is model or shadow.failures >= MAX_DEATHS:
            return False
        return len(self._waiting) <= _SHADOWED or self._shadow_s <= _QUICK * latency_s

    async def _answered(self, inputs: ModelInput, model: Model) -> tuple[Answers | None, float, str]:
        """Answers or None, seconds, and the error."""
        self._busy, began = model, self._clock.now()
        try:
            answers = await inputs.ask(model)
        except PredictionFailed as error:
            return None, self._clock.now() - began, str(error) or "no answer"
        else:
            return answers, self._clock.now() - began, ""
        finally:
            self._busy = None
            for old in self._retired:
                old.close()
            self._retired.clear()

    async def _write(self, inputs: ModelInput, model: Model, since_s: float) -> list[dict[str, Any]]:
        """Lines of predictions, after they were written to the disk."""
        wall = self._clock.wall()

        def written() -> list[dict[str, Any]]:
            lines = [*inputs.lines(model.manifest, own=bool(model.own), wall=wall, latency_s=since_s)]
            if lines and self._output is not None:
                self._output.write([json.dumps(line) for line in lines])
            return lines

        lines = await asyncio.get_running_loop().run_in_executor(self._thread, written)
        if answered := [line for line in lines if "why" not in line]:
            self.predictions += len(answered)
            self.last = answered[-1]
        return lines

    def _close_unused(self) -> None:
        used = [model for model in self._loaded if model in {self._model, self._shadow, self._busy}]
        for model in self._loaded:
            if model not in used:
                model.close()
        self._loaded = used

    def _retire(self, model: Model | None) -> None:
        if model is None or model is self._model or model is self._shadow:
            return
        if model is self._busy:  # it may be answering now
            self._retired.append(model)
        else:
            model.close()
