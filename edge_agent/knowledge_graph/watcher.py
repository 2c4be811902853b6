"""Reads the files of a device's knowledge graph again when they change."""

import asyncio
from typing import Any

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.config.knowledge_graph import KnowledgeGraphSettings
from edge_agent.identity import fleet_secret as secrets
from edge_agent.identity.fleet_secret import fingerprint, secret_path
from edge_agent.knowledge_graph.fact_files import FactFiles, stat_of
from edge_agent.knowledge_graph.reader import KnowledgeGraphReader
from edge_agent.knowledge_graph.workspace import KnowledgeGraphWorkspace
from edge_agent.tasks.profile import permitted_profile
from edge_agent.tasks.roles import learning_role
from edge_agent.tasks.task_store import require_knowledge_graph
from models.contract import Profile
from models.knowledge_graph.data.files import BOUNDS, read_features
from models.knowledge_graph.data.merging import ROOM
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.process.daemon import Progress

_log = structlog.get_logger(__name__)


def graph_of(task: Task, settings: AgentSettings) -> tuple[KnowledgeGraphSettings, Profile]:
    """The device's knowledge graph for a task, and the task's modalities that it has.

    Raises:
        Misconfigured: this device has no knowledge graph.
    """
    graph = require_knowledge_graph(task, settings.graph)
    return graph, permitted_profile(task, graph.features, settings.learn)


def reader_of(task: Task, settings: AgentSettings, rest_s: float = 0.0) -> KnowledgeGraphReader:
    """A reader of the device's knowledge graph; ``rest_s`` as in :class:`KnowledgeGraphReader`.

    Raises:
        Misconfigured: this device has no knowledge graph.
    """
    graph, profile = graph_of(task, settings)
    return KnowledgeGraphReader(graph, secret_path(settings), task, profile.modalities, rest_s)


def check_knowledge_graph(task: Task | None, settings: AgentSettings) -> dict[str, Any]:
    """This device's present knowledge graph, for people; without a task its files are only checked.

    Raises:
        Misconfigured: a file is missing or invalid.
    """
    graph = settings.graph
    if graph is None:
        return {}
    shown = fingerprint(secrets.read(secret_path(settings)))
    if task is None or task.graph is None:
        files = FactFiles(graph.triples, ROOM, BOUNDS)
        files.read({path: stat_of(path) for path in files.paths()}, files.paths())
        for path in graph.features.values():
            read_features(path)
        found, notes, told = files.graph, tuple[str, ...](), dict[str, int]()
    else:
        snapshot = reader_of(task, settings).read_if_changed(0.0)
        if snapshot is None:
            raise Misconfigured("a file of the knowledge graph changes while it is read; try again")
        found, notes = snapshot.graph, snapshot.notes
        told = {name: triples for name, (triples, *_) in snapshot.told.counts.items()}
        if len(found) < (least := task.rounds.min_windows):
            notes = (*notes, f"{len(found)} facts are too few for a round: rounds.min_windows is {least}")
    counts = {"triples": len(found), "entities": len(found.entities), "relations": len(found.relations)}
    return {"fleet_secret": shown, "graph": counts, "triples_with": told, "graph_notes": list(notes)}


class KnowledgeGraphWatcher:
    """One service. Makes the workspace of a task on knowledge graphs, and watches its files.

    Args:
        settings: of the agent.
        clock: paces it.
        changed: set when the knowledge graph changes, becomes invalid or is valid again.
        progress: each check is a piece of work.
    """

    def __init__(self, settings: AgentSettings, clock: Clock, changed: Signal, progress: Progress) -> None:
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._progress = progress
        self._wake = Signal()
        self._workspace: KnowledgeGraphWorkspace | None = None

    async def use(self, task: Task) -> KnowledgeGraphWorkspace:
        """Watch the knowledge graph for this task."""
        graph, profile = graph_of(task, self._settings)
        work = self._workspace
        if work is not None and (work.task.graph, work.modalities) == (task.graph, profile.modalities):
            work.task = task
        else:
            reader = reader_of(task, self._settings, rest_s=graph.poll_s / 2)
            work = self._workspace = KnowledgeGraphWorkspace(
                task,
                profile.modalities,
                reader,
                self._clock,
                by=learning_role(self._settings),
                poll_s=graph.poll_s,
            )
            _log.info("graph_task_started", task=task.name, modalities=profile.modalities)
        self._wake.set()
        return work

    async def leave(self) -> None:
        """Stop watching: the new task is not on knowledge graphs."""
        self._workspace = None

    async def run(self) -> None:
        """Check the files for ever; at once if no knowledge graph was read yet."""
        graph = self._settings.graph
        if graph is None:
            return
        while True:
            work = self._workspace
            with self._progress.work("reading the knowledge graph"):
                if work is not None and await asyncio.to_thread(work.refresh):
                    self._changed.set()
            await self._wake.wait(graph.poll_s)
