"""Predictions -> the lines that are written: a model's answer for each window, and the true label. Pure.

Shapes: B windows, M modalities of the task, C channels, T samples, K classes of a target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.quality.meter import ScoredWindows
from models.contract import FloatArray
from models.data.streams.windows import Windows
from protocol.bundle import BundleManifest
from protocol.tasks.task import LABEL, Target, Task

_DIGITS: Final = 5


@dataclass(frozen=True)
class Answered:
    """A batch of windows, and a model's answers.

    Attributes:
        judged: the windows.
        used_BM: which modalities counted as present.
        some: indices of the windows given to the model.
        answers: by target, a row for each of ``some`` (``LoadedModel.predict``).
        manifest: of the model.
        personal: whether own tensors were used.
    """

    judged: ScoredWindows
    used_BM: NDArray[np.bool_]
    some: NDArray[np.intp]
    answers: Mapping[str, FloatArray]
    manifest: BundleManifest
    personal: bool

    def lines(self, wall: float, latency_s: float) -> Iterator[dict[str, Any]]:
        """A line for each window, as JSON values; ``targets`` if the model predicts more than ``label``.

        ``present`` lists the model's modalities that the window had; ``quality`` is of all modalities
        present: a missing one has none.

        Args:
            wall: Unix time.
            latency_s: since the windows closed.
        """
        task, windows, quality_BM = self.judged.task, self.judged.windows, self.judged.quality.quality_BM
        reads = {m.name: task.modality_names.index(m.name) for m in self.manifest.modalities}
        for row, b in enumerate(self.some):
            said = {t.name: self._said(t, row, b) for t in self.manifest.predicted}
            label = said.pop(
                LABEL, {"label": None, "probabilities": None, "truth": _class(task, windows.y_B[b])}
            )
            yield {
                "t": round(float(windows.start_B[b]) + task.window.length_s, 3),
                "wall": round(wall, 3),
                "label": label["label"],
                "probabilities": label["probabilities"],
                **({"targets": said} if said else {}),
                "present": {name: bool(self.used_BM[b, m]) for name, m in reads.items()},
                "quality": {
                    name: round(float(quality_BM[b, m]), 3)
                    for m, name in enumerate(task.modality_names)
                    if windows.present_BM[b, m]
                },
                "truth": label["truth"],
                "version": self.manifest.version,
                **({"personal": True} if self.personal else {}),
                "latency_ms": round(1000 * latency_s, 2),
            }

    def _said(self, target: Target, row: int, b: np.intp) -> dict[str, Any]:
        """The answer for one target in one window."""
        answer = self.answers[target.name][row]
        if target.kind == "classification":
            return _chosen(self.judged.windows, target, answer, b)
        if target.modality is None:
            return _valued(self.judged.windows, target, answer, b)
        used = self.used_BM[b, self.judged.task.modality_names.index(target.modality)]
        return {"mse": _off(self.judged, target.modality, answer, b) if used else None}


def _chosen(windows: Windows, target: Target, p_K: FloatArray, b: np.intp) -> dict[str, Any]:
    true = windows.y_B[b] if target.name == LABEL else _truth(windows, target, b)
    return {
        "label": target.labels[int(p_K.argmax())],
        "probabilities": [round(float(p), _DIGITS) for p in p_K],
        "truth": target.labels[int(true)] if true >= 0 else None,
    }


def _valued(windows: Windows, target: Target, value: FloatArray, b: np.intp) -> dict[str, Any]:
    true = _truth(windows, target, b)
    return {"value": _short(value), "truth": None if np.isnan(true) else _short(true)}


def _off(judged: ScoredWindows, modality: str, made_CT: FloatArray, b: np.intp) -> float:
    """Distance of a generated window from the sensor's; the window itself would fill the disk.

    Mean square, in the modality's scale: 1 is one scale off.
    """
    gap_CT = (made_CT - judged.windows.x[modality][b]) / judged.task.modality(modality).scale
    return _short(np.square(gap_CT, dtype=np.float64).mean())


def _truth(windows: Windows, target: Target, b: np.intp) -> np.float32:
    """NaN if the window is not labelled."""
    known_B = windows.targets.get(target.name)
    return np.float32(np.nan) if known_B is None else known_B[b]


def _class(task: Task, y: np.int64) -> str | None:
    return task.labels[int(y)] if y >= 0 else None


def _short(value: Any) -> float:
    """As many digits as float32 has."""
    return float(f"{float(value):.7g}")
