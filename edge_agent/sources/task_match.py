"""Checks whether sources and a task fit together."""

from collections.abc import Iterable

from edge_agent.sources.base import ChecksTask, Source, channels_in
from models.backbones.views import sensed
from models.data.streams.frame_sizes import size_mismatch
from protocol.tasks.task import Task


def matching_modalities(task: Task, sources: Iterable[Source]) -> tuple[str, ...]:
    """The task's modalities that the sources deliver with the right size, in the task's order."""
    task, have = sensed(task), dict[str, int]()
    for source in sources:
        have |= channels_in(source, task)
    return tuple(m.name for m in task.modalities if have.get(m.name) == m.sample_values)


def source_mismatches(task: Task, sources: Iterable[Source]) -> list[str]:
    """Messages about delivered modalities that the task cannot use."""
    words, task = [], sensed(task)
    for source in sources:
        for name, channels in channels_in(source, task).items():
            if name not in task.modality_names:
                known = ", ".join(task.modality_names)
                words.append(
                    f"{source.name}: modality {name!r} is not in task {task.name!r} (it has {known})"
                )
            elif channels != (modality := task.modality(name)).sample_values:
                words.append(f"{source.name}: {size_mismatch(modality, channels)}")
    return words


def doubts(task: Task, sources: Iterable[Source]) -> list[str]:
    """The sources' own mismatches with the task; none for knowledge graphs."""
    if task.graph is not None:
        return []
    task = sensed(task)
    return [words for source in sources if isinstance(source, ChecksTask) for words in source.doubts(task)]
