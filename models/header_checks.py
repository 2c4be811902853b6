"""Checks of update headers that all methods share. Torch-free."""

from protocol.errors import Reason, Refused
from protocol.frames.headers import UpdateHeader
from protocol.tasks.task import Task


def check_weight_one(header: UpdateHeader, reason: str) -> None:
    """``header.weight`` is 1.

    Args:
        header: of the update.
        reason: why the method wants 1.

    Raises:
        Refused: OUT_OF_BOUNDS.
    """
    if header.weight != 1:
        raise Refused(Reason.OUT_OF_BOUNDS, f"header.weight is {header.weight}; {reason}: 1")


def check_counts(task: Task, header: UpdateHeader) -> None:
    """``header.counts``: known modalities, one number a class (knowledge graphs: one), no more than samples.

    Raises:
        Refused: WRONG_MODALITY or OUT_OF_BOUNDS; the detail names the modality.
    """
    for name, per_class in header.counts.items():
        if name not in task.modality_names:
            raise Refused(
                Reason.WRONG_MODALITY,
                f"header.counts: the task has no modality {name!r} (it has {', '.join(task.modality_names)})",
            )
        if len(per_class) != task.classes or sum(per_class) > header.samples:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"header.counts.{name}: {len(per_class)} numbers, {sum(per_class)} in all; the task wants "
                f"{task.classes}, the update has {header.samples} samples",
            )
