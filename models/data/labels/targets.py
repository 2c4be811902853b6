"""How further targets are named on disk. Pure."""

from protocol.frames.frame import digest
from protocol.tasks.task import Target, Task


def key_of(target: Target) -> str:
    """Names a target and what its labels mean: under other classes an index would be another thing."""
    return f"{target.name}.{digest(repr((target.kind, target.labels, target.unit)).encode())[:8]}"


def keys_of(task: Task) -> dict[str, str]:
    """The names of a task's further targets that take labels, by key."""
    return {key_of(target): target.name for target in task.targets if target.kind != "generation"}
