"""Batches of windows or questions: given to a model, and written with its answers as lines.

Shapes: B windows or questions, N of them given to the model, M modalities.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.onnx_models.observation import TAILS, Answers
from edge_agent.inference.prediction_lines import Answered
from edge_agent.inference.question_answers import AskedQuestion, NameIndex, stamped
from edge_agent.inference.serving.served_kinds import Model, ServedCompletion, ServedWindows
from edge_agent.inference.serving.served_model import PredictionFailed
from edge_agent.windows.quality.meter import ScoredWindows
from protocol.bundle import BundleManifest

if TYPE_CHECKING:
    from edge_agent.inference.onnx_models.embedding_lookup import LookupResult

Batch = ScoredWindows | AskedQuestion
_NOTHING: Final = np.zeros(0, np.int64)


class WindowBatch:
    """Windows; the model gets only those with a modality that it reads.

    Args:
        judged: the windows.
        model: the active model.
        min_quality: a modality below it counts as missing.
    """

    def __init__(self, judged: ScoredWindows, model: ServedWindows, min_quality: float) -> None:
        self._judged = judged
        self._used_BM = judged.windows.present_BM & (judged.quality.quality_BM >= min_quality)
        self._asked = model.names, self._read_by(model)
        self._some_N = np.flatnonzero(self._asked[1].any(axis=1))
        self._said: Answers = {}
        self.count = len(self._some_N)
        self.since = judged.closed
        self.y_B = judged.windows.y_B[self._some_N]
        self.read_NR: NDArray[np.bool_] | None = self._asked[1][self._some_N]
        """Which modalities the model reads in each of them."""

    async def ask(self, model: Model) -> Answers:
        """Predict for the windows with a modality that the model reads. Raises PredictionFailed."""
        if not isinstance(model, ServedWindows):
            raise PredictionFailed("the model is not of windows")
        some, x = self._some_N, self._judged.windows.x
        names, present_BM = self._asked
        if model.names != names:  # the shadow may read other modalities than the model
            present_BM = self._read_by(model)
        if self.count < len(present_BM):
            x, present_BM = {name: x[name][some] for name in model.names}, present_BM[some]
        return await model.predict(x, present_BM, self._judged.task)

    def accept(self, answers: Answers) -> None:
        """Take these answers for the lines."""
        self._said = answers

    def lines(
        self, manifest: BundleManifest, *, own: bool, wall: float, latency_s: float
    ) -> Iterator[dict[str, Any]]:
        """One line for each window."""
        said = Answered(self._judged, self._used_BM, self._some_N, self._said, manifest, own)
        return said.lines(wall, latency_s)

    def _read_by(self, model: ServedWindows) -> NDArray[np.bool_]:
        names = self._judged.task.modality_names
        return self._used_BM[:, [names.index(name) for name in model.names]]


class QuestionBatch:
    """Questions to a knowledge graph; those with unknown names are answered without the model.

    Args:
        asked: the questions.
        names: of the device's knowledge graph.
    """

    def __init__(self, asked: AskedQuestion, names: NameIndex) -> None:
        self._asked = asked
        self._names = names
        self._known = [question for question in asked.questions if not names.unknown_name(question)]
        self._found: LookupResult | None = None
        self.count = len(asked.questions)
        self.since = asked.at
        self.y_B = _NOTHING
        self.read_NR: NDArray[np.bool_] | None = None

    async def ask(self, model: Model) -> Answers:
        """Rows of the best answers; none if the device has no embeddings. Raises PredictionFailed."""
        if not isinstance(model, ServedCompletion):
            raise PredictionFailed("the model is not of knowledge graphs")
        found = await model.ask(self._names.keyed(self._known), self._asked.task)
        self._found = self._found or found
        return {TAILS: found.tails_NK}

    def accept(self, answers: Answers) -> None:
        """Take the model's answers for the lines."""
        self.count = len(answers[TAILS])
        self.y_B = np.full(self.count, -1)

    def lines(
        self, manifest: BundleManifest, *, own: bool, wall: float, latency_s: float
    ) -> Iterator[dict[str, Any]]:
        """One line for each question."""
        del own  # answers always come from the device's own embeddings
        if self._found is not None:
            for line in self._names.lines(self._asked, manifest, self._found):
                yield stamped(line, manifest, wall, latency_s)


ModelInput = WindowBatch | QuestionBatch
