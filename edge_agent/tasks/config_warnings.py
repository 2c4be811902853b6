"""Warnings about the configuration, and checks for later failures. For ``check`` and the start."""

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
    """All warnings for this device; ``task``: None while none is known."""
    exposed = [
        *folder_of(settings.device_dir).exposed(),
        *fleet_secret.exposed(fleet_secret.secret_path(settings)),
    ]
    misfits = [] if task is None else doubts(task, sources)
    return [
        *unavailable_roles(settings, task),
        *exposed,
        *misfits,
        *_on_queries(settings),
        *_on_publishing(settings),
    ]


def _on_queries(settings: AgentSettings) -> list[str]:
    """Warnings if questions cannot be read, or the answers are written nowhere."""
    if settings.graph is None or settings.graph.queries is None:
        return []
    if settings.graph.queries.is_dir():
        return [f"graph.queries: {settings.graph.queries} is a folder, and no question is read; name a file"]
    infer = settings.infer
    if infer.enabled and (infer.output is not None or infer.mqtt is not None):
        return []
    reason = "neither infer.output nor [infer.mqtt] is" if infer.enabled else "infer.enabled is false"
    return [f"graph.queries is set and {reason}: no answer is written"]


def _on_publishing(settings: AgentSettings) -> list[str]:
    """Warnings if predictions are configured to be published but will not be, or not be visible."""
    publish, texts = settings.infer.mqtt, []
    if publish is None:
        return []
    if not settings.infer.enabled:
        texts.append("[infer.mqtt] is set and infer.enabled is false: nothing is published")
    if publish.home_assistant and settings.graph is not None:
        texts.append("infer.mqtt.home_assistant: answers about a knowledge graph are not sensors")
    return texts


def require_output(settings: AgentSettings, config: Path) -> None:
    """Check that predictions can be written and published; creates no file, and does not contact a broker.

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
    existing = path
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if existing != path and not existing.is_dir():
        raise Misconfigured(f"{config}: infer.output: {path}: {existing} is not a folder")
    if not os.access(existing, os.W_OK):
        raise Misconfigured(
            f"{config}: infer.output: {path}: {existing} is not writable for this user; "
            "give it to the service's user, or name another file"
        )
