"""Sums of devices' evaluations of one version, and the scores that follow from them. Pure.

A report is added, and subtracted again when the device sends another or is forgotten. A number of
combinations of modalities have sums of their own (``MAX_SUBSETS``, the likely ones from the start); others
are together, so nothing that devices say makes the sums grow without end.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from protocol.tasks.evaluation import DeviceEvaluation, EvaluatedPart
from protocol.tasks.task import Task

MAX_SUBSETS: Final = 64
MATRIX_CLASSES: Final = 64
"""A target with more classes has counts by class, and no confusion matrix."""
REST: Final = ""
"""Name of the combinations without sums of their own."""


@dataclass
class PartSums:
    """Of windows with the same modalities.

    Attributes:
        windows: evaluated.
        classes: by target and class: windows of it, windows predicted as it, and windows of both.
        errors: by regression target: windows, sum of the errors in scales, and of their squares.
    """

    windows: int = 0
    classes: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=dict)

    def add(self, part: EvaluatedPart, sign: int) -> None:
        """Add a device's part, or subtract it."""
        self.windows += sign * part.windows
        for target, cells in part.confusion.items():
            for true, said, count in cells:
                self._count(target, true, 0, sign * count)
                self._count(target, said, 1, sign * count)
                self._count(target, true, 2, sign * count if true == said else 0)
        for target, sums in part.errors.items():
            found = self.errors.setdefault(target, [0, 0.0, 0.0])
            more = (sums.windows, sums.absolute, sums.squared)
            found[:] = [max(0, value + sign * change) for value, change in zip(found, more, strict=True)]

    def _count(self, target: str, of: int, column: int, change: int) -> None:
        self.classes.setdefault(target, {}).setdefault(of, [0, 0, 0])[column] += change

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """From JSON values."""
        classes = {
            target: {int(of): list(counts) for of, counts in found.items()}
            for target, found in stored["classes"].items()
        }
        return cls(
            stored["windows"], classes, {target: list(sums) for target, sums in stored["errors"].items()}
        )

    def plain(self) -> dict[str, Any]:
        """As JSON values, without classes that do not occur."""
        classes = {
            target: {str(of): counts for of, counts in sorted(found.items()) if any(counts)}
            for target, found in sorted(self.classes.items())
        }
        return {"windows": self.windows, "classes": classes, "errors": dict(sorted(self.errors.items()))}


@dataclass
class VersionSums:
    """Of all devices.

    Attributes:
        parts: by the names of the modalities, joined by ``+``.
        confusion: by target with at most ``MATRIX_CLASSES`` classes, windows by true and predicted class.
        closed: nothing is added any more, because the rows of the devices are no longer stored.
    """

    parts: dict[str, PartSums]
    confusion: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    closed: bool = False

    @classmethod
    def empty(cls, task: Task) -> Self:
        """No report; places for all inputs together, each alone, and all but each."""
        names = task.input_names
        likely = [names, *((name,) for name in names)]
        likely += [tuple(one for one in names if one != name) for name in names if len(names) > 1]
        parts = dict.fromkeys("+".join(subset) for subset in likely[:MAX_SUBSETS])
        return cls({name: PartSums() for name in (*parts, REST)})

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """From JSON values."""
        confusion = {
            target: {(true, said): count for true, said, count in cells}
            for target, cells in stored["confusion"].items()
        }
        parts = {name: PartSums.of(part) for name, part in stored["parts"].items()}
        return cls(parts, confusion, bool(stored.get("closed")))

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        confusion = {
            target: [[*place, count] for place, count in sorted(cells.items()) if count]
            for target, cells in sorted(self.confusion.items())
        }
        parts = {name: part.plain() for name, part in self.parts.items()}
        return {"parts": parts, "confusion": confusion, "closed": self.closed}

    def add(self, task: Task, report: DeviceEvaluation, sign: int = 1) -> None:
        """Add a report, or subtract one that was added.

        A place is never given to another combination, so a report is subtracted where it was added.
        """
        small = {t.name for t in task.objectives if len(t.labels) <= MATRIX_CLASSES}
        for part in report.parts:
            name = "+".join(part.modalities)
            if name not in self.parts:
                if len(self.parts) <= MAX_SUBSETS:
                    self.parts[name] = PartSums()
                else:
                    name = REST
            self.parts[name].add(part, sign)
            for target in small.intersection(part.confusion):
                cells = self.confusion.setdefault(target, {})
                for true, said, count in part.confusion[target]:
                    cells[true, said] = cells.get((true, said), 0) + sign * count

    def scores(self, task: Task) -> dict[str, Any]:
        """Scores of all windows, by modalities, and by class (:func:`scores_of`)."""
        present = {name: part for name, part in self.parts.items() if part.windows}
        found = scores_of(task, present.values())
        matrices = {}
        for target in task.objectives:
            if cells := self.confusion.get(target.name):
                size = range(len(target.labels))
                matrix = [[cells.get((true, said), 0) for said in size] for true in size]
                matrices[target.name] = {"labels": list(target.labels), "matrix": matrix}
        by = {name or "others": scores_of(task, [part])["targets"] for name, part in present.items()}
        windows = {name or "others": part.windows for name, part in present.items()}
        return found | {"by_modalities": by, "windows_by_modalities": windows, "confusion": matrices}


def scores_of(task: Task, parts: Iterable[PartSums]) -> dict[str, Any]:
    """Scores of some parts together.

    Returns:
        ``targets``: by target ``windows``, and ``accuracy``, ``macro_f1`` (over classes that occur or are
        predicted) and ``classes`` (by label ``windows``, ``recall``, ``precision`` and ``f1``); or ``mae``
        and ``rmse``, in the target's unit.
    """
    whole = PartSums()
    for part in parts:
        whole.windows += part.windows
        for target, found in part.classes.items():
            for of, counts in found.items():
                for column, count in enumerate(counts):
                    whole._count(target, of, column, count)  # noqa: SLF001 - of the same class
        for target, sums in part.errors.items():
            known = whole.errors.get(target, [0, 0.0, 0.0])
            whole.errors[target] = [a + b for a, b in zip(known, sums, strict=True)]
    scores: dict[str, Any] = {}
    for one in task.objectives:
        if by_class := whole.classes.get(one.name):
            scores[one.name] = _of_classes(one.labels, by_class)
        elif (errors := whole.errors.get(one.name)) and errors[0]:
            windows, absolute, squared = errors
            mae, rmse = one.scale * absolute / windows, one.scale * math.sqrt(squared / windows)
            scores[one.name] = {"windows": windows, "mae": mae, "rmse": rmse}
    return {"windows": whole.windows, "targets": scores}


def _of_classes(labels: Iterable[str], counts: Mapping[int, list[int]]) -> dict[str, Any]:
    windows = sum(true for true, _, _ in counts.values())
    hits = sum(both for _, _, both in counts.values())
    classes: dict[str, Any] = {}
    f1 = []
    for of, label in enumerate(labels):
        true, said, both = counts.get(of, (0, 0, 0))
        if true + said:
            f1.append(2 * both / (true + said))
            recall, precision = both / true if true else None, both / said if said else None
            classes[label] = {"windows": true, "recall": recall, "precision": precision, "f1": f1[-1]}
    return {
        "windows": windows,
        "accuracy": hits / windows if windows else None,
        "macro_f1": sum(f1) / len(f1) if f1 else None,
        "classes": classes,
    }
