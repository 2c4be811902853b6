"""Models of windows and of knowledge graphs, as the agent holds them, wherever they run (``serving.host``).

If a process dies, hangs or answers nonsense, only its present batch fails; the next one starts it again.

Shapes: B windows or questions, M modalities that the model reads, C channels, T samples, K classes.
"""

import math
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.onnx_models.compatibility import PRESENT
from edge_agent.inference.onnx_models.embedding_lookup import (
    HAS_ROWS,
    NEW_RELATION,
    KeyedQuestions,
    LookupResult,
    no_answers,
)
from edge_agent.inference.serving.codec import Arrays
from edge_agent.inference.serving.in_process import Host
from edge_agent.inference.serving.model_server import RAN
from edge_agent.inference.serving.served_model import ModelOptions, PredictionFailed, ServedModel
from models.contract import FloatArray
from models.knowledge_graph.data.keys import KEY_BYTES
from protocol.bundle import BundleManifest, Completion
from protocol.errors import Reason, Refused
from protocol.tasks.task import Target, Task

_MAX_CALL_BYTES: Final = 8 * 1024 * 1024
_F4: Final = np.dtype(np.float32)


class ServedWindows(ServedModel):
    """A model of windows."""

    def __init__(self, host: Host, folder: Path, manifest: BundleManifest, options: ModelOptions) -> None:
        super().__init__(host, folder, manifest, options)
        self.names = tuple(m.name for m in manifest.modalities)
        """Modalities that it reads, in the order of the columns of ``present``."""
        self._shapes = {target.name: self._shape(target) for target in manifest.predicted}
        """Shape of one window's answer, by target."""
        self._out_bytes = 4 * sum(math.prod(shape) for shape in self._shapes.values())
        self._in_bytes = 4 * sum(m.channels * manifest.samples[m.name] for m in manifest.modalities)

    def _shape(self, target: Target) -> tuple[int, ...]:
        if target.kind == "classification":
            return (len(target.labels),)
        made = {m.name: m for m in self.manifest.generated or ()}.get(target.modality or "")
        return () if made is None else (made.channels, self.manifest.samples[made.name])

    async def predict(
        self, x: Arrays, present_BM: NDArray[np.bool_], task: Task | None
    ) -> dict[str, FloatArray]:
        """Predict for windows: ``LoadedModel.predict``, with the device's own tensors for the task.

        Args:
            x: per modality ``x_BCT`` in raw units, float32.
            present_BM: availability; columns as :attr:`names`.
            task: whose own tensors are used; None: none.

        Raises:
            PredictionFailed: there is no answer, or one that is not finite.
        """
        if task is not None and self.manifest.overridable:
            await self.use(task)
        rows = max(1, _MAX_CALL_BYTES // (self._in_bytes + self._out_bytes + 1))
        if len(present_BM) <= rows:
            return await self._once(x, present_BM)
        parts = [
            await self._once({n: x[n][at : at + rows] for n in self.names}, present_BM[at : at + rows])
            for at in range(0, len(present_BM), rows)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in self._shapes}

    async def _once(self, x: Arrays, present_BM: NDArray[np.bool_]) -> dict[str, FloatArray]:
        given = {name: x[name] for name in self.names}
        given[PRESENT] = present_BM
        count = len(present_BM)
        answer, found = await self.request({"op": "predict"}, given, count * self._out_bytes + _F4.itemsize)
        ran_s = found.pop(RAN, None)
        if found.keys() != self._shapes.keys():
            raise self.nonsense(f"it predicts {', '.join(found)[:100]}")
        for name, shape in self._shapes.items():
            said = found[name]
            if said.shape != (count, *shape) or said.dtype != _F4:
                raise self.nonsense(f"{name} is {said.dtype} {said.shape}, not float32 {(count, *shape)}")
        self.failures = 0
        self.own, self.ran_s = bool(answer.get("own")), 0.0 if ran_s is None else float(ran_s.sum())
        if not all(np.isfinite(said).all() for said in found.values()):
            raise PredictionFailed("a prediction is not a finite number")
        return found


class ServedCompletion(ServedModel):
    """A model that completes knowledge graphs."""

    async def ask(self, asked: KeyedQuestions, task: Task) -> LookupResult:
        """Answer questions by key, from the embeddings that training wrote for the task.

        Raises:
            PredictionFailed: there is no answer.
        """
        await self.use(task)
        arrays = {"entity": asked.entity_B16, "relation": asked.relation_B16, "inverse": asked.inverse_B}
        shape, count = self._completion, len(asked.inverse_B)
        most = count * (1 + shape.top_k * (8 + KEY_BYTES + 4))
        answer, found = await self.request({"op": "ask"}, arrays, most)
        if why := str(answer.get("why", "")):
            self.failures = 0
            return no_answers(why[:500], shape.top_k)
        try:
            made = LookupResult("", found["state"], found["tails"], found["keys"], found["scores"])
            self._require(made, count)
        except (KeyError, ValueError) as error:
            raise self.nonsense(str(error)) from None
        self.failures = 0
        self.own = bool(answer.get("own"))
        return made

    @property
    def _completion(self) -> Completion:
        if self.manifest.graph is None:
            raise Refused(Reason.WRONG_TENSORS, "the model is of windows, not of knowledge graphs")
        return self.manifest.graph

    def _require(self, made: LookupResult, count: int) -> None:
        """Raises ValueError."""
        if made.state_B.shape != (count,) or (made.state_B > NEW_RELATION).any():
            raise ValueError(f"{count} questions have {made.state_B.shape} states")
        size = (int((made.state_B == HAS_ROWS).sum()), self._completion.top_k)
        dims = (made.tails_NK.shape, made.scores_NK.shape, made.keys_NK16.shape)
        if dims != (size, size, (*size, KEY_BYTES)) or made.tails_NK.dtype != np.int64:
            raise ValueError(f"answers are of {dims}, not of {size}")
        if not np.isfinite(made.scores_NK).all():
            raise ValueError("scores are not finite")


Model = ServedWindows | ServedCompletion


def served(host: Host, folder: Path, manifest: BundleManifest, options: ModelOptions) -> Model:
    """The model of a bundle, not started."""
    kind = ServedWindows if manifest.graph is None else ServedCompletion
    return kind(host, folder, manifest, options)
