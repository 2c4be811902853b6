"""The coordinator's labelled windows (``task.labelled``): read and checked at the start, kept for the worker.

The worker gets them as one window set in the state folder: whatever form the file has, it is read once, by
the process that tells the operator what is wrong with it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from models.contract import WindowSet
from models.data import labelled_windows, window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

FILE: Final = "labelled.npz"
"""Below ``state_dir``."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Own:
    """The labelled windows, and what they lack for good training, in words."""

    windows: WindowSet
    gaps: tuple[str, ...] = ()


def read(settings: CoordinatorSettings, task: Task) -> Own | None:
    """The windows that the task names; None where it names none.

    Args:
        settings: paths in the task are relative to its own file.
        task: what is learned.

    Raises:
        Misconfigured: they cannot be read or do not fit the task; the message names the file and the key.
    """
    if task.labelled is None:
        return None
    try:
        found = labelled_windows.read(task, settings.task.parent)
        windows = labelled_windows.usable(task, found)
    except Misconfigured as error:
        raise Misconfigured(f"{settings.task}: labelled: {error}") from None
    return Own(windows, labelled_windows.gaps(task, found, windows))


def keep(own: Own | None, state_dir: Path) -> Path | None:
    """Write what :func:`read` gave, and say where it lies. What it lacks is a warning in the log."""
    file = state_dir / FILE
    if own is None:
        file.unlink(missing_ok=True)
        return None
    for words in own.gaps:
        log.warning("labelled_windows", why=words)
    window_set.save(file, own.windows)
    return file


def announced(task: Task) -> Task:
    """The task as devices and bundles know it: without the paths of this machine."""
    return task.model_copy(update={"labelled": None})
