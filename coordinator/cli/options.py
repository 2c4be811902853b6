"""Options shared by the coordinator's commands."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator.recovery.folder_owner import DATABASE
from runtime.cli import Format, fail

Config = Annotated[Path, typer.Option("--config", "-c", help="coordinator.toml", show_default=False)]


def require_database(state_dir: Path, command: str, fmt: Format) -> Path:
    """The database of a state folder; without one the command ends with 69."""
    database = state_dir / DATABASE
    if not database.is_file():
        fail(command, f"{database} is not there; has this coordinator ever run?", fmt)
    return database
