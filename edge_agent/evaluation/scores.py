"""Counts of right and wrong predictions of held-back windows, and the report on them. Pure.

Shapes: B windows, R modalities that the model reads, K classes of a target.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.onnx_models.observation import Answers
from models.contract import WindowSet
from models.data import window_set
from protocol.tasks.evaluation import (
    MAX_CELLS,
    MAX_ERROR,
    MAX_EVALUATED,
    MAX_PARTS,
    DeviceEvaluation,
    EvaluatedPart,
    RegressionErrors,
)
from protocol.tasks.task import Target, Task

Subset = tuple[str, ...]
REST: Final[Subset] = ()
"""Of rarer combinations of modalities together."""


@dataclass
class PartScores:
    """Of the windows in which the model read the same modalities.

    Attributes:
        windows: with a label of any target that the model predicts.
        confusion: by target with classes, windows by true and predicted class.
        errors: by regression target: windows, and the sums of the absolute and of the squared errors, in
            scales of the target and cut at ``MAX_ERROR``.
    """

    windows: int = 0
    confusion: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)
    errors: dict[str, tuple[int, float, float]] = field(default_factory=dict)

    def add(self, other: "PartScores") -> None:
        """Add another part."""
        self.windows += other.windows
        for target, cells in other.confusion.items():
            self.confusion.setdefault(target, Counter()).update(cells)
        for target, sums in other.errors.items():
            count, absolute, squared = self.errors.get(target, (0, 0.0, 0.0))
            self.errors[target] = (count + sums[0], absolute + sums[1], squared + sums[2])

    @property
    def cells(self) -> int:
        """Counts that are not 0."""
        return sum(len(cells) for cells in self.confusion.values())


Scores = dict[Subset, PartScores]


def evaluated_targets(task: Task, predicted: Sequence[Target]) -> tuple[Target, ...]:
    """The targets that are evaluated: of the task, with the same classes, and with labels.

    A generated modality is not: its windows have no label.
    """
    known = {target.name: target for target in task.objectives if target.kind != "generation"}
    return tuple(
        target
        for target in predicted
        if (mine := known.get(target.name)) is not None
        and (mine.kind, mine.labels) == (target.kind, target.labels)
    )


def labelled(targets: Sequence[Target], windows: WindowSet) -> NDArray[np.bool_]:
    """Which windows have a label of any of these targets, as ``(B,)``."""
    found_B = np.zeros(len(windows), np.bool_)
    for target in targets:
        found_B |= np.isfinite(_truth(windows, target))
    return found_B


def count(
    scores: Scores,
    targets: Sequence[Target],
    windows: WindowSet,
    answers: Answers,
    read: tuple[Sequence[str], NDArray[np.bool_]],
) -> None:
    """Add labelled windows to the scores.

    Args:
        scores: changed.
        targets: of :func:`evaluated_targets`.
        windows: with a label of one of them, and a modality that the model reads.
        answers: of the model.
        read: modalities that the model reads, and in which windows, as ``(B, R)``.
    """
    names, read_BR = read
    for row_R in np.unique(read_BR, axis=0):
        here_B = (read_BR == row_R).all(axis=1)
        part = PartScores(windows=int(here_B.sum()))
        for target in targets:
            if (said := answers.get(target.name)) is not None:
                _compare(part, target, _truth(windows, target)[here_B], np.asarray(said)[here_B])
        subset = tuple(name for name, there in zip(names, row_R, strict=True) if there)
        scores.setdefault(subset, PartScores()).add(part)


def together(scores: Mapping[Subset, PartScores]) -> PartScores:
    """The sum of all parts."""
    whole = PartScores()
    for part in scores.values():
        whole.add(part)
    return whole


def cells(scores: Mapping[Subset, PartScores]) -> int:
    """Counts that are not 0, of all parts together."""
    return together(scores).cells


def _truth(windows: WindowSet, target: Target) -> NDArray[np.float64]:
    """``(B,)``: the class or the number; NaN without a label."""
    truth_B = np.asarray(window_set.target(windows, target.name), np.float64)
    return np.where(truth_B < 0, np.nan, truth_B) if target.kind == "classification" else truth_B


def _compare(
    part: PartScores, target: Target, truth_B: NDArray[np.float64], said: NDArray[np.float32]
) -> None:
    known_B = np.isfinite(truth_B)
    if not known_B.any():
        return
    if target.kind == "classification":
        predicted_B = said[known_B].argmax(axis=1)
        pairs = zip(truth_B[known_B].astype(int).tolist(), predicted_B.tolist(), strict=True)
        part.confusion[target.name] = Counter(pairs)
        return
    error_B = np.abs(said[known_B].astype(np.float64) - truth_B[known_B]) / target.scale
    error_B = np.minimum(np.nan_to_num(error_B, nan=MAX_ERROR), MAX_ERROR)
    part.errors[target.name] = len(error_B), float(error_B.sum()), float(np.square(error_B).sum())


def report(
    scores: Mapping[Subset, PartScores], version: int, bundle: str, least: int
) -> DeviceEvaluation | None:
    """The report on a version; None if there are fewer than ``least`` windows, or more than fit into it.

    Combinations of modalities with fewer than ``least`` windows are reported together.
    """
    total = sum(part.windows for part in scores.values())
    if total < least or total > MAX_EVALUATED:
        return None
    parts, rest = dict[Subset, PartScores](), PartScores()
    for at, (subset, part) in enumerate(sorted(scores.items(), key=lambda one: (-one[1].windows, one[0]))):
        if part.windows >= least and at < MAX_PARTS - 1:
            parts[subset] = part
        else:
            rest.add(part)
    if rest.windows:
        parts[REST] = rest
    if sum(part.cells for part in parts.values()) > MAX_CELLS:  # many classes: all windows together
        parts = {REST: together(scores)}
    if sum(part.cells for part in parts.values()) > MAX_CELLS:
        return None
    found = tuple(_part(subset, part) for subset, part in parts.items())
    return DeviceEvaluation(version=version, bundle=bundle, windows=total, parts=found)


def _part(subset: Subset, part: PartScores) -> EvaluatedPart:
    return EvaluatedPart(
        modalities=subset,
        windows=part.windows,
        confusion={
            target: tuple((true, said, count) for (true, said), count in sorted(cells.items()))
            for target, cells in sorted(part.confusion.items())
        },
        errors={
            target: RegressionErrors(windows=windows, absolute=absolute, squared=squared)
            for target, (windows, absolute, squared) in sorted(part.errors.items())
        },
    )
