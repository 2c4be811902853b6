"""The coordinator's labelled windows (``task.labelled``): checked at the start, stored for the worker.

The worker gets them as one window set in the state folder: the file is read once, whatever its form, by the
process that reports problems to the operator.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.workers.backbones import converted
from models.backbones.views import announced as without_files
from models.backbones.views import sensed
from models.contract import WindowSet
from models.data import labelled_windows, window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

FILE: Final = "labelled.npz"
"""Below ``state_dir``."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Own:
    """The labelled windows, and what they lack for good training."""

    windows: WindowSet
    gaps: tuple[str, ...] = ()


def read(settings: CoordinatorSettings, task: Task) -> Own | None:
    """The windows that the task names; None if it names none.

    Args:
        settings: paths in the task are relative to its own file.
        task: what is learned.

    Raises:
        Misconfigured: they cannot be read or do not fit the task; the message names the file and the key.
    """
    if task.labelled is None:
        return None
    try:
        cut = sensed(task)
        found = labelled_windows.read(cut, settings.task.parent)
        windows = labelled_windows.usable(cut, found)
    except Misconfigured as error:
        raise Misconfigured(f"{settings.task}: labelled: {error}") from None
    return Own(windows, labelled_windows.gaps(cut, found, windows))


def keep(own: Own | None, state_dir: Path, task: Task) -> Path | None:
    """Write the result of :func:`read`, and return its path. What it lacks is logged as a warning.

    If the task has backbones, their features are written (``backbones.keep`` was called before).
    """
    file = state_dir / FILE
    if own is None:
        file.unlink(missing_ok=True)
        return None
    for words in own.gaps:
        log.warning("labelled_windows", why=words)
    window_set.save(file, own.windows)
    converted(task, state_dir, file)
    return file


def announced(task: Task) -> Task:
    """The task as devices and bundles see it: without paths of this machine."""
    return without_files(task).model_copy(update={"labelled": None})
