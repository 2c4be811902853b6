"""Options that the agent's commands share."""

from pathlib import Path
from typing import Annotated, Final

import typer

from edge_agent.config.agent import AgentSettings, read
from protocol.errors import Misconfigured

TaskOption = Annotated[
    str | None,
    typer.Option("--task", help="a further task of this device, as named in [[tasks]]", show_default=False),
]
Config = Annotated[Path, typer.Option("--config", "-c", help="agent.toml")]
DEFAULT_CONFIG: Final = Path("/etc/lichen/agent.toml")


def read_task_settings(config: Path, task: str | None) -> AgentSettings:
    """The settings of one task of the device; ``task``: None for the main one.

    Raises:
        Misconfigured: the file is wrong, or has no such task.
    """
    settings = read(config)
    try:
        return settings.for_task(task)
    except Misconfigured as error:
        raise Misconfigured(f"--task: {config}: {error}") from None
