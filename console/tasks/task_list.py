"""The tasks that ``coordinator.toml`` names, read again when the file changes."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from starlette.exceptions import HTTPException

from coordinator.config.coordinator import CoordinatorSettings, load_settings
from protocol.errors import LichenError
from runtime.text import first_few, one_line

log = structlog.get_logger(__name__)
_LOOK_S: Final = 2.0
"""The file's time is looked at so often; it is read again only when that changes."""
_NAMED: Final = 20


class TaskList:
    """The further tasks of a fleet, beside its main task.

    Args:
        settings: of the main task, which stay as they are.
        config: the file of the settings; None: it is not read again.
    """

    def __init__(self, settings: CoordinatorSettings, config: Path | None = None) -> None:
        self.main = settings
        self.trouble = ""
        """Why the file cannot be read now; the tasks are then those of before."""
        self._config = config
        self.further = _narrowed(settings)
        """The settings of the further tasks by name; the thread that reads the file replaces all at once."""
        self._mark: object = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the further tasks, in the order of the file."""
        return tuple(self.further)

    def settings_of(self, name: str | None) -> CoordinatorSettings:
        """The settings of a task; None: of the main one.

        Raises:
            HTTPException: 404: there is no such task.
        """
        if name is None:
            return self.main
        tasks = self.further
        if name not in tasks:
            shown = one_line(name, 60)
            there = f"its further tasks: {first_few(tasks, _NAMED)}" if tasks else "it has one task"
            raise HTTPException(404, f"this fleet has no task {shown!r} (any more); {there}")
        return tasks[name]

    async def run(self) -> None:
        """Look at the file, for ever."""
        while True:
            if self._config is not None:
                await asyncio.to_thread(self.refresh, self._config)
            await asyncio.sleep(_LOOK_S)

    def refresh(self, config: Path) -> None:
        """Read the file, if it or a drop-in is another one than at the last call."""
        mark = _mark(config)
        if mark == self._mark:
            return
        before, self._mark = self._mark, mark
        try:
            self.further = _narrowed(load_settings(config))
        except LichenError as error:
            self.trouble = str(error)[:1000]
            log.warning("tasks_not_read", file=str(config), why=self.trouble)
            return
        self.trouble = ""
        if before is not None:
            log.info("tasks_read", tasks=self.names)


def _narrowed(settings: CoordinatorSettings) -> Mapping[str, CoordinatorSettings]:
    return {name: settings.for_task(name) for name in settings.task_names()}


def _mark(config: Path) -> object:
    """As :func:`runtime.settings.load.load` finds them."""
    files = [config, *sorted(config.with_name(f"{config.stem}.d").glob("*.toml"))]
    return tuple((str(file), _stamp(file)) for file in files)


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
