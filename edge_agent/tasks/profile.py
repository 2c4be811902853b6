"""What this device may read and predict at all, by its sources and its own settings. Pure."""

from collections.abc import Iterable

from edge_agent.config.agent import LearnSettings
from models.contract import Profile
from protocol.tasks.task import Task


def permitted_profile(task: Task, delivered: Iterable[str], learn: LearnSettings) -> Profile:
    """What the device may read and predict at all.

    Args:
        task: says what there is.
        delivered: modalities that the sources deliver.
        learn: the device's own wishes; names that the task does not have are passed over.
    """
    have = set(delivered)
    inputs = task.input_names if learn.inputs is None else learn.inputs
    targets = task.target_names if learn.targets is None else learn.targets
    made = {target.name: target.modality for target in task.targets}
    return Profile(
        tuple(m for m in task.input_names if m in have and m in inputs),
        tuple(t for t in task.target_names if t in targets and made.get(t) in {None, *have}),
    )


def unknown_modalities(task: Task, learn: LearnSettings) -> list[str]:
    """In words, wishes that this task cannot meet."""
    words = []
    for key, wanted, known in (
        ("inputs", learn.inputs, task.input_names),
        ("targets", learn.targets, task.target_names),
    ):
        odd = sorted(set(wanted or ()) - set(known))
        if odd:
            words.append(
                f"learn.{key}: {', '.join(odd)}: not among those of task {task.name!r} ({', '.join(known)})"
            )
    return words
