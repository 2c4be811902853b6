"""The sources of a configuration, opened."""

from pathlib import Path

from edge_agent.config.agent import AgentSettings
from edge_agent.sources.base import Source, open_source
from protocol.tasks.task import Task
from runtime.clock import Clock


def open_sources(settings: AgentSettings, config: Path, task: Task | None, clock: Clock) -> list[Source]:
    """All sources of the configuration, which was read from ``config``.

    Raises:
        Misconfigured: names the file, the table and the key.
    """
    names, folder = None if task is None else task.modality_names, config.absolute().parent
    return [
        open_source(table, f"{config}: source[{i}]", folder, names, clock)
        for i, table in enumerate(settings.source)
    ]
