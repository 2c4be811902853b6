"""The task of a simulation: a file, a table of the same keys, or a ``Task``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.settings.load import check_table, load_toml

TaskInput = Task | Mapping[str, Any] | str | Path
"""What ``lichen.simulate`` takes as a task."""


def read_task(given: TaskInput) -> tuple[Task, Path]:
    """The task, and the folder that its relative paths begin in.

    Raises:
        Misconfigured: there is no such file, or a key is wrong; the message names file and key.
    """
    if isinstance(given, Task):
        return given, Path()
    if isinstance(given, Mapping):
        return check_table(Task, given, "task", Path(), "forbid"), Path()
    if not isinstance(given, str | Path):
        raise Misconfigured(f"task: give a path, a dict or a Task, not {type(given).__name__}")
    file = Path(given)
    if not file.is_file():
        raise Misconfigured(
            f"task: {file}: there is no such file; lichen task init makes one from recordings"
        )
    return load_toml(Task, file), file.parent
