"""What is doubtful but no error, in words; and what would fail only later. For ``check`` and the start."""

import os
from collections.abc import Iterable
from pathlib import Path

from edge_agent.config.agent import AgentSettings
from edge_agent.identity import fleet_secret
from edge_agent.identity.files import folder_of
from edge_agent.sources.base import Source
from edge_agent.sources.task_match import doubts
from edge_agent.tasks.roles import unavailable_roles
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.mqtt.link import read_password
from runtime.mqtt.tls import tls_context


def warnings(settings: AgentSettings, task: Task | None, sources: Iterable[Source]) -> list[str]:
    """All doubts about this device; ``task``: None while none is known."""
    exposed = [
        *folder_of(settings.state_dir).exposed(),
        *fleet_secret.exposed(fleet_secret.secret_path(settings)),
    ]
    doubtful = [] if task is None else doubts(task, sources)
    return [*unavailable_roles(settings), *exposed, *doubtful, *_unheard(settings), *_unsent(settings)]


def _unheard(settings: AgentSettings) -> list[str]:
    """Words where questions cannot be read, or nobody can read the answers."""
    if settings.graph is None or settings.graph.queries is None:
        return []
    if settings.graph.queries.is_dir():
        return [f"graph.queries: {settings.graph.queries} is a folder, and no question is read; name a file"]
    infer = settings.infer
    if infer.enabled and (infer.output is not None or infer.mqtt is not None):
        return []
    lacking = "neither infer.output nor [infer.mqtt] is" if infer.enabled else "infer.enabled is false"
    return [f"graph.queries is set and {lacking}: no answer is written"]


def _unsent(settings: AgentSettings) -> list[str]:
    """Words where predictions are to be published, and there will be none or nobody sees them."""
    publish, words = settings.infer.mqtt, []
    if publish is None:
        return []
    if not settings.infer.enabled:
        words.append("[infer.mqtt] is set and infer.enabled is false: nothing is published")
    if publish.home_assistant and settings.graph is not None:
        words.append("infer.mqtt.home_assistant: answers to questions about a knowledge graph are no sensors")
    return words


def require_output(settings: AgentSettings, config: Path) -> None:
    """Whether predictions could be written and published; makes no file, and asks no broker.

    Raises:
        Misconfigured: names the key and the path.
    """
    path, publish = settings.infer.output, settings.infer.mqtt
    if not settings.infer.enabled:
        return
    if publish is not None:
        try:
            tls_context(publish.link())
            read_password(publish.link())
        except Misconfigured as error:
            raise Misconfigured(f"{config}: [infer.mqtt]: {error}") from None
    if path is None:
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
