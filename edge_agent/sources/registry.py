"""Opens the sources of a configuration, of the kinds in this folder or in other packages."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from edge_agent.config.agent import AgentSettings
from edge_agent.sources import plugins
from edge_agent.sources.base import REGISTRY, Source
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.settings.load import check_table


def open_source(
    table: dict[str, Any], where: str, folder: Path, modalities: Sequence[str] | None, clock: Clock
) -> Source:
    """Create the source of a ``[[source]]`` table in the configuration.

    Args:
        table: the table, including ``kind``.
        where: its path for messages, as ``source[0]``.
        folder: base of relative paths: the folder of the configuration.
        modalities: the task's modality names; None while no task is known.
        clock: paces the source.

    Raises:
        Misconfigured: unknown kind, unknown or wrong key, a missing or broken file, an unknown modality.
    """
    kinds = REGISTRY.kinds()
    name = table.get("kind")
    foreign = {} if isinstance(name, str) and name in kinds else plugins.entry_points_by_kind()
    if not isinstance(name, str) or name not in {*kinds, *foreign}:
        known = [*kinds, *sorted(foreign.keys() - kinds.keys())]
        near = get_close_matches(str(name), known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Misconfigured(
            f"{where}.kind: {name!r} is not a kind of source; known: {', '.join(known)}{hint}"
        )
    try:
        kind = kinds[name] if name in kinds else plugins.load(foreign[name])
    except Misconfigured as error:
        raise Misconfigured(f"{where}.kind: {error}") from None
    options = {key: value for key, value in table.items() if key != "kind"}
    settings = check_table(kind.settings, options, where, folder)
    try:
        return kind.make(settings, modalities, clock)
    except Misconfigured as error:
        raise Misconfigured(f"{where}: {error}") from None


def open_sources(settings: AgentSettings, config: Path, task: Task | None, clock: Clock) -> list[Source]:
    """All sources of the configuration file ``config``.

    Raises:
        Misconfigured: names the file, the table and the key.
    """
    names, folder = None if task is None else task.modality_names, config.absolute().parent
    return [
        open_source(table, f"{config}: source[{i}]", folder, names, clock)
        for i, table in enumerate(settings.source)
    ]
