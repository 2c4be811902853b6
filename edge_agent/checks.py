"""What is doubtful but no error, in words; and what would fail only later. For ``check`` and the start."""

import os
from collections.abc import Iterable
from pathlib import Path

from edge_agent.config import AgentSettings
from edge_agent.identity import secret
from edge_agent.identity.folder import folder_of
from edge_agent.roles import lacks
from edge_agent.sources.base import Doubtful, Source
from protocol.errors import Misconfigured
from protocol.task import Task


def doubts(task: Task, sources: Iterable[Source]) -> list[str]:
    """What the sources know about themselves that hardly fits the task; nothing where it is on graphs."""
    if task.graph is not None:
        return []
    return [words for source in sources if isinstance(source, Doubtful) for words in source.doubts(task)]


def warnings(settings: AgentSettings, task: Task | None, sources: Iterable[Source]) -> list[str]:
    """All doubts about this device; ``task``: None while none is known."""
    exposed = [*folder_of(settings.state_dir).exposed(), *secret.exposed(secret.secret_path(settings))]
    doubtful = [] if task is None else doubts(task, sources)
    return [*lacks(settings), *exposed, *doubtful, *_unheard(settings)]


def _unheard(settings: AgentSettings) -> list[str]:
    """Words where questions cannot be read, or nobody can read the answers."""
    if settings.graph is None or settings.graph.queries is None:
        return []
    if settings.graph.queries.is_dir():
        return [f"graph.queries: {settings.graph.queries} is a folder, and no question is read; name a file"]
    if settings.infer.enabled and settings.infer.output is not None:
        return []
    lacking = "infer.output is not" if settings.infer.enabled else "infer.enabled is false"
    return [f"graph.queries is set and {lacking}: no answer is written"]


def require_output(settings: AgentSettings, config: Path) -> None:
    """Whether predictions could be written; makes no file.

    Raises:
        Misconfigured: names the key and the path.
    """
    path = settings.infer.output
    if path is None or not settings.infer.enabled:
        return
    if path.is_dir():
        raise Misconfigured(f"{config}: infer.output: {path} is a folder; name a file in it")
    there = path
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if there != path and not there.is_dir():
        raise Misconfigured(f"{config}: infer.output: {path}: {there} is no folder")
    if not os.access(there, os.W_OK):
        raise Misconfigured(
            f"{config}: infer.output: {path}: {there} is not writable for this user; "
            "give it to the service's user, or name another file"
        )
