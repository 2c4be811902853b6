"""Options shared by the coordinator's commands."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.storage.location import Location
from runtime.cli import Format, fail

Config = Annotated[Path, typer.Option("--config", "-c", help="coordinator.toml", show_default=False)]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="a further task of the fleet; default: the main task",
        show_default=False,
    ),
]


def read_settings(config: Path, task: str | None) -> CoordinatorSettings:
    """The settings of one task of the fleet.

    Args:
        config: coordinator.toml.
        task: as of ``--task``.

    Raises:
        Misconfigured: the file is wrong, or has no such task.
    """
    return load_settings(config).for_task(task)


def require_database(location: Location, command: str, fmt: Format) -> None:
    """Check that a coordinator has run; otherwise the command ends with 69."""
    if not location.exists():
        fail(command, f"{location.where} is not there; has this coordinator ever run?", fmt)
