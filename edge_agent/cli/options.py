"""Options that the agent's commands share."""

from pathlib import Path
from typing import Annotated, Final

import typer

Config = Annotated[Path, typer.Option("--config", "-c", help="agent.toml")]
DEFAULT_CONFIG: Final = Path("/etc/lichen/agent.toml")
