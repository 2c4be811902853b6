"""The permitted profile: what this device may read and predict, by its sources and its own settings. Pure."""

from collections.abc import Iterable

from edge_agent.config.agent import LearnSettings
from models.contract import Profile
from protocol.tasks.task import Task


def permitted_profile(task: Task, delivered: Iterable[str], learn: LearnSettings) -> Profile:
    """The modalities that the device may read, and the targets that it may predict.

    Args:
        task: defines modalities and targets.
        delivered: modalities that the sources deliver.
        learn: the device's own settings; names that the task does not have are ignored.
    """
    have = set(delivered)
    inputs = task.input_names if learn.inputs is None else learn.inputs
    targets = task.target_names if learn.targets is None else learn.targets
    generated = {target.name: target.modality for target in task.targets}
    return Profile(
        tuple(m for m in task.input_names if m in have and m in inputs),
        tuple(t for t in task.target_names if t in targets and generated.get(t) in {None, *have}),
    )


def unknown_modalities(task: Task, learn: LearnSettings) -> list[str]:
    """Messages about configured names that this task does not have."""
    words = []
    for key, wanted, known in (
        ("inputs", learn.inputs, task.input_names),
        ("targets", learn.targets, task.target_names),
    ):
        unknown = sorted(set(wanted or ()) - set(known))
        if unknown:
            words.append(
                f"learn.{key}: {', '.join(unknown)}: unknown to task {task.name!r} ({', '.join(known)})"
            )
    return words
