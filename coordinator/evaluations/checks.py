"""Whether a device's evaluation is one of this task, and agrees with itself. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from protocol.errors import Reason, Refused
from protocol.tasks.evaluation import (
    MAX_CELLS,
    MAX_ERROR,
    Cell,
    DeviceEvaluation,
    EvaluatedPart,
    RegressionErrors,
)
from protocol.tasks.task import Target, Task

_SLACK: Final = 1e-6
"""Relative: sums of floating-point numbers depend on their order."""


def require_sound(task: Task, report: DeviceEvaluation) -> None:
    """Check a report.

    Raises:
        Refused: it names what the task does not have, or its sums do not fit each other.
    """
    targets = {target.name: target for target in task.objectives}
    parts = [part.modalities for part in report.parts]
    if len(set(parts)) != len(parts):
        raise _refused("a combination of modalities is there twice")
    if sum(part.windows for part in report.parts) != report.windows:
        raise _refused(f"its parts do not have {report.windows} windows together")
    if sum(len(cells) for part in report.parts for cells in part.confusion.values()) > MAX_CELLS:
        raise _refused(f"its confusion matrices have over {MAX_CELLS} counts")
    for part in report.parts:
        if part.modalities != tuple(name for name in task.input_names if name in part.modalities):
            raise _refused(f"{'+'.join(part.modalities)} are not inputs of the task, in its order")
        for name, cells in part.confusion.items():
            _require_confusion(_target(targets, name, "classification"), part, cells)
        for name, sums in part.errors.items():
            _require_errors(_target(targets, name, "regression"), part, sums)


def _target(targets: dict[str, Target], name: str, kind: str) -> Target:
    target = targets.get(name)
    if target is None or target.kind != kind:
        raise _refused(f"the task has no {kind} {name!r}")
    return target


def _require_confusion(target: Target, part: EvaluatedPart, cells: Sequence[Cell]) -> None:
    classes, places = len(target.labels), {(true, said) for true, said, _ in cells}
    if len(places) != len(cells):
        raise _refused(f"{target.name}: a count is there twice")
    if any(true >= classes or said >= classes for true, said in places):
        raise _refused(f"{target.name}: the task has {classes} classes")
    if sum(count for _, _, count in cells) > part.windows:
        raise _refused(f"{target.name}: more counts than the {part.windows} windows")


def _require_errors(target: Target, part: EvaluatedPart, sums: RegressionErrors) -> None:
    count, absolute, squared = sums.windows, sums.absolute, sums.squared
    if count > part.windows:
        raise _refused(f"{target.name}: more errors than the {part.windows} windows")
    highest = MAX_ERROR * absolute * (1 + _SLACK)  # no square exceeds MAX_ERROR times its error
    if absolute > MAX_ERROR * count * (1 + _SLACK) or squared > highest + _SLACK:
        raise _refused(f"{target.name}: errors over {MAX_ERROR:g} scales")
    if absolute > math.sqrt(count * squared) * (1 + _SLACK) + _SLACK:
        raise _refused(f"{target.name}: the sum of the errors does not fit that of their squares")


def _refused(words: str) -> Refused:
    return Refused(Reason.MALFORMED, f"evaluation: {words}"[:500])
