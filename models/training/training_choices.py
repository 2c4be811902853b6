"""Options of local training that name classes or modalities of the task: checked, and completed. Torch-free.

``class_weights``: how much a window of each class counts. ``housings``: modalities of sensors in one case,
which turn together in augmentation.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.tasks.task import ModalityName, Task

ClassWeights = Literal["none", "balanced"] | dict[str, Annotated[float, Field(ge=0, le=1e6)]]
Housings = tuple[tuple[ModalityName, ...], ...]
_AXES: Final = 3


def axes_of(task: Task) -> tuple[str, ...]:
    """The modalities that augmentation may rotate: streams of three channels. Colours are no axes."""
    return tuple(one.name for one in task.modalities if one.kind == "stream" and one.channels == _AXES)


def housings_of(task: Task, housings: Housings) -> Housings:
    """The groups that turn together; if none is named, all three-channel streams are in one."""
    return housings or (axes_of(task),)


def weights_trouble(task: Task, weights: ClassWeights) -> str:
    """What is wrong with ``class_weights``, in words; empty: nothing."""
    if isinstance(weights, str):
        return ""
    if unknown := _unknown(weights, task.labels):
        return f"class_weights: {unknown}"
    if weights and not any(weights.get(label, 1.0) for label in task.labels):
        return "class_weights: all are 0, so no window would count"
    return ""


def housings_trouble(task: Task, housings: Housings) -> str:
    """What is wrong with ``housings``, in words; empty: nothing."""
    every = [name for group in housings for name in group]
    if unknown := _unknown(every, axes_of(task)):
        return f"housings: {unknown}, of streams with three channels"
    twice = sorted({name for name in every if every.count(name) > 1})
    return f"housings: {twice[0]!r} is in two of them" if twice else ""


def _unknown(names: Iterable[str], known: Sequence[str]) -> str:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"{name!r} is none of {', '.join(known) or 'none'}{hint}"
    return ""


def weight_of_each(weights: ClassWeights, labels: Sequence[str], counts: Sequence[int]) -> list[float] | None:
    """The weight of a window of each class; None: all count alike.

    Args:
        weights: as configured. ``balanced``: classes that occur weigh the same together.
        labels: the task's classes.
        counts: of windows by class.
    """
    if isinstance(weights, Mapping):
        return [weights.get(label, 1.0) for label in labels] if weights else None
    if weights == "none":
        return None
    present = sum(count > 0 for count in counts)
    return [sum(counts) / (present * count) if count else 0.0 for count in counts]
