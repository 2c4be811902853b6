"""The two views of a task with backbones. Pure.

A task is learned on what backbones make: their modalities are vectors. Windows are cut of what sensors
deliver, ``Modality.sensed``. A task file names backbones by their files; :func:`prepared` writes both views
into the task, and only such a task is announced or learned.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from protocol.base import first_fault
from protocol.errors import Misconfigured
from protocol.tasks.kinds import KINDS, Backbone
from protocol.tasks.network import LINEAR
from protocol.tasks.task import Modality, Task

Measure = Callable[[Modality, int], Backbone]
"""Checks the file of a modality's backbone with windows of so many samples, and measures it."""
_MOST_HZ: Final = KINDS["vector"].most_hz


def backbones(task: Task) -> Mapping[str, Backbone]:
    """The backbones of a prepared task, by modality."""
    return {one.name: one.sensed.backbone for one in task.modalities if one.sensed and one.sensed.backbone}


def sensed(task: Task) -> Task:
    """The task as windows are cut of it; the same object if it has no backbones."""
    if not backbones(task):
        return task
    return task.model_copy(update={"modalities": tuple(one.sensed or one for one in task.modalities)})


def announced(task: Task) -> Task:
    """The task without paths of backbones on this machine."""
    if not backbones(task):
        return task
    return task.model_copy(update={"modalities": tuple(_without_file(one) for one in task.modalities)})


def _without_file(one: Modality) -> Modality:
    if one.sensed is None or one.sensed.backbone is None:
        return one
    bare = one.sensed.backbone.model_copy(update={"file": None})
    return one.model_copy(update={"sensed": one.sensed.model_copy(update={"backbone": bare})})


def unprepared(task: Task) -> str:
    """The first modality whose backbone was not measured; empty: none."""
    return next((one.name for one in task.modalities if one.backbone is not None), "")


def unlearnable(task: Task, *, linear: bool) -> str:
    """Why a method cannot learn a task's features or linear network, in words; empty if it can.

    Args:
        task: to be learned.
        linear: whether the method trains linear networks.
    """
    if task.network.kind == LINEAR and not linear:
        return f"network.kind = {LINEAR!r}: it has no place for a network without encoders; leave it out"
    if bare := unprepared(task):
        return (
            f"modality {bare!r} has a backbone in a file, which a coordinator reads and announces; a device "
            "takes the announced task"
        )
    return ""


def prepared(task: Task, measure: Measure) -> Task:
    """The task as it is learned and announced; the same object if it has no backbones.

    Args:
        task: as its file has it.
        measure: of each backbone; its errors are passed on.

    Raises:
        Misconfigured: the task does not fit the features; the message names the key.
    """
    if stray := next((one.name for one in task.modalities if one.sensed is not None), ""):
        raise Misconfigured(f"modality {stray!r}: sensed: written by the coordinator; leave it out")
    if not unprepared(task):
        return task
    made = [
        one if one.backbone is None else _vector(one, measure(one, task.samples(one.name)))
        for one in task.modalities
    ]
    changed: dict[str, Any] = {"modalities": tuple(one.model_dump(exclude_unset=True) for one in made)}
    network = task.network.model_dump(exclude_unset=True)
    if task.network.kind == LINEAR:
        changed["network"] = {**network, "feature_dim": made[0].channels * made[0].points}
    try:
        return Task.model_validate({**task.model_dump(exclude_unset=True), **changed})
    except ValidationError as error:
        raise Misconfigured(first_fault(error)) from None


def _vector(one: Modality, backbone: Backbone) -> Modality:
    """What a modality's encoder gets."""
    return Modality(
        name=one.name,
        kind="vector",
        channels=backbone.features or 1,
        rate_hz=min(one.rate_hz, _MOST_HZ),
        sensed=one.model_copy(update={"backbone": backbone}),
    )


def layouts(one: Modality, samples: int) -> Iterator[tuple[int, ...]]:
    """Shapes of a window that a backbone may take, without the batch."""
    if one.kind == "image":
        yield one.channels, one.height or 1, one.width or 1
    yield one.channels, samples
    if one.channels == 1 or samples == 1:
        yield (one.channels * samples,)
