"""Names of further targets on disk. Pure."""

from protocol.frames.frame import digest
from protocol.tasks.task import Target, Task


def key_of(target: Target) -> str:
    """A key of a target's name and its labels' meaning: with other classes an index differs."""
    return f"{target.name}.{digest(repr((target.kind, target.labels, target.unit)).encode())[:8]}"


def keys_of(task: Task) -> dict[str, str]:
    """The names of a task's further targets that take labels, by key."""
    return {key_of(target): target.name for target in task.targets if target.kind != "generation"}
