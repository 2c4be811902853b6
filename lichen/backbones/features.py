"""Features of a simulation's windows, for a task with backbones: computed once, before training.

The files are read and checked as ``lichen task check`` does it, and each window is run as on a device.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from models.backbones import files
from models.backbones.model import Run
from models.backbones.views import announced, prepared, sensed, unprepared
from models.backbones.windows import paths_in, runs_of, with_features
from models.contract import WindowSet
from models.data import window_set
from protocol.errors import Misconfigured, Refused
from protocol.tasks.task import Task

Say = Callable[[str], None]
"""Takes a line about the progress."""
_SAY_EVERY_S: Final = 5.0


class WindowFeatures:
    """Converts windows as they are cut to windows as the task is learned.

    Windows of a task without backbones stay as they are.

    Args:
        task: prepared.
        runs: its backbones, by modality.
        paths: of their files.
        say: called with a line about the progress at intervals; None: there are no lines.
    """

    def __init__(
        self,
        task: Task,
        runs: Mapping[str, Run],
        paths: Mapping[str, Path] | None = None,
        say: Say | None = None,
    ) -> None:
        self.task = announced(task)
        """As it is learned."""
        self.cut = sensed(task)
        """As windows are cut of it."""
        self.paths = paths or {}
        self._runs = runs
        self._say = say
        self._done = 0
        self._said = time.perf_counter()

    def of(self, windows: WindowSet, where: str) -> WindowSet:
        """Windows as the task is learned.

        Args:
            windows: that fit ``cut``.
            where: whose they are.

        Raises:
            Misconfigured: a backbone fails on them; the message names ``where`` and the modality.
        """
        if not self._runs:
            return windows

        def done(count: int) -> None:
            self._done += count
            self._tell(where)

        try:
            made = with_features(self.task, windows, self._runs, done)
        except Refused as error:
            raise Misconfigured(f"{where}: {error.detail}") from None
        return window_set.check(made, self.task, where)

    def _tell(self, where: str) -> None:
        now = time.perf_counter()
        if self._say is None or now - self._said < _SAY_EVERY_S:
            return
        self._said = now
        self._say(f"features: {self._done} windows so far, now of {where}")


def open_features(task: Task, folder: Path, say: Say | None = None) -> WindowFeatures:
    """Check, measure and open the backbones of a task.

    Args:
        task: as its file has it.
        folder: where relative paths of the task begin.
        say: as :class:`WindowFeatures`.

    Raises:
        Misconfigured: a backbone cannot be used, the task does not fit it, or ONNX Runtime is not installed;
            the message names the modality and the file.
    """
    if not unprepared(task):
        return WindowFeatures(prepared(task, files.measure_in(folder)), {})
    made = files.prepare(task, folder)
    paths = paths_in(made, folder)
    try:
        runs = runs_of(made, paths)
    except Refused as error:  # the file has changed since it was measured
        raise Misconfigured(error.detail) from None
    return WindowFeatures(made, runs, paths, say)
