"""Options that the coordinator's commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Option("--config", "-c", help="coordinator.toml", show_default=False)]


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people, or one JSON object.")]
