"""The windows, targets and modalities that a simulation is evaluated on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from models import registry
from models.contract import Blobs, Evaluation, WindowSet
from models.data.window_set import target as truth_of
from models.training.evaluation import Part, in_parts
from protocol.tasks.task import LABEL, Task


def judged_in_parts(
    task: Task, state: Blobs, test: WindowSet, kinds: Sequence[Part]
) -> dict[str, dict[str, Mapping[str, float]]]:
    """The metrics of a state on parts of the windows; see :func:`models.training.evaluation.in_parts`."""
    client = registry.method(task.method).client()
    return in_parts(task, test, lambda part: client.evaluate(task, part, state), kinds)


def labelled_for(task: Task, held: WindowSet) -> tuple[str, ...]:
    """The targets that a device with these windows could learn: labelled ones, and generated ones.

    All targets, if the method needs no labels on devices.
    """
    if not registry.method(task.method).needs_labels:
        return task.target_names
    names = []
    for target in task.objectives:
        if target.modality is not None:
            is_there = held.present_BM[:, task.modality_names.index(target.modality)].any()
        else:
            is_there = np.isfinite(truth_of(held, target.name)).any()
        names += [target.name] if is_there else []
    return tuple(names)


def judgeable(task: Task, test: WindowSet, targets: Sequence[str]) -> WindowSet | None:
    """The windows with only these targets' labels; None if none of them has a class of any."""
    y_B = test.y_B if LABEL in targets else np.full_like(test.y_B, -1)
    left = replace(test, y_B=y_B, targets={n: of_B for n, of_B in test.targets.items() if n in targets})
    known = (t.name for t in task.objectives if t.labels)
    return left if any(np.isfinite(truth_of(left, name)).any() for name in known) else None


def without_others(task: Task, evaluation: Evaluation, targets: Sequence[str]) -> Evaluation:
    """Without figures of other targets; a generated target can be evaluated without labels."""
    others = tuple(f"{name}/" for name in task.target_names if name not in targets)
    return replace(
        evaluation, metrics={n: v for n, v in evaluation.metrics.items() if not n.startswith(others)}
    )
