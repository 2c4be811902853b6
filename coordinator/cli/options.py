"""Options shared by the coordinator's commands."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator.storage.location import Location
from runtime.cli import Format, fail

Config = Annotated[Path, typer.Option("--config", "-c", help="coordinator.toml", show_default=False)]


def require_database(location: Location, command: str, fmt: Format) -> None:
    """Check that a coordinator has run; otherwise the command ends with 69."""
    if not location.exists():
        fail(command, f"{location.where} is not there; has this coordinator ever run?", fmt)
