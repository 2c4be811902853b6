"""The workspace of a task on knowledge graphs: this device's knowledge graph, as its files are now.

Names stay on the device; the worker also gets only keys. Inference reads
:attr:`KnowledgeGraphWorkspace.snapshot`, which is replaced as a whole when files change. If a file is
invalid, the earlier knowledge graph stays.
"""

import threading
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from edge_agent.identity.fleet_secret import fingerprint
from edge_agent.knowledge_graph.reader import KnowledgeGraphReader, KnowledgeGraphSnapshot
from edge_agent.tasks.workspace import Problem, Readiness
from models.contract import Profile
from models.knowledge_graph.data.keyed import KeyedGraph
from protocol.errors import Misconfigured, Transient
from protocol.messages import ModalityState, Role
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.waits import stamp

_log = structlog.get_logger(__name__)
BROKEN: Final = "graph_broken"
"""Reason in the state message: a file of the knowledge graph cannot be used."""
_UNREAD: Final = "the knowledge graph has not been read yet"


@dataclass(eq=False, repr=False)
class KnowledgeGraphWorkspace:
    """Data of one task on knowledge graphs. Thread-safe.

    Args:
        task: on knowledge graphs.
        modalities: those that this device reads, in the task's order.
        reader: of its files.
        clock: of the times of errors.
        by: the role in which it takes offers; None: it only observes.
        poll_s: interval between calls of :meth:`refresh`, for messages.
    """

    task: Task
    modalities: tuple[str, ...]
    reader: KnowledgeGraphReader
    clock: Clock
    by: Role | None = "train"
    poll_s: float = 5.0

    def __post_init__(self) -> None:
        self.snapshot: KnowledgeGraphSnapshot | None = None
        self.readings = 0
        """How often the knowledge graph has changed."""
        self._broken: tuple[float, str] | None = None
        self._one_at_a_time = threading.Lock()

    def refresh(self) -> bool:
        """Check the files, and read them if they changed. Returns whether the workspace has changed.

        An invalid file is logged once.
        """
        with self._one_at_a_time:
            try:
                found = self.reader.read_if_changed(self.clock.now())
            except Misconfigured as error:
                return self._say_broken(str(error))
            if found is None:
                return False
            mended, changed = self._broken is not None, found is not self.snapshot
            if mended:
                _log.info("graph_mended")
            self._broken, self.snapshot = None, found
            if changed:
                self.readings += 1
                self._say_read(found)
            return changed or mended

    def _say_broken(self, words: str) -> bool:
        before = self._broken
        if before is not None and before[1] == words:
            return False
        _log.error("graph_broken", detail="the earlier knowledge graph stays in use", why=words)
        self._broken = (self.clock.wall() if before is None else before[0]), words
        return True

    def _say_read(self, found: KnowledgeGraphSnapshot) -> None:
        graph = found.graph
        _log.info(
            "graph_read",
            triples=len(graph),
            entities=len(graph.entities),
            relations=len(graph.relations),
            notes=list(found.notes),
        )

    def readiness(self) -> Readiness:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.readiness`."""
        found, profile = self.snapshot, Profile(self.modalities, ())
        reasons = () if self._broken is None else (BROKEN,)
        if found is None:
            unread = ModalityState(windows=(0,), missing=1.0, reasons=reasons)
            return Readiness(profile, 0, dict.fromkeys(self.modalities, unread))
        told = found.told
        modalities = {
            name: ModalityState(
                windows=told.counts[name], missing=round(told.missing[name], 3), reasons=reasons
            )
            for name in self.modalities
        }
        return Readiness(profile, told.samples, modalities, fingerprint(found.secret))

    def load(self, _limit: int) -> tuple[Profile, KeyedGraph]:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.load`, including lines appended until now."""
        self.refresh()
        if self.snapshot is None:
            raise Transient(_UNREAD if self._broken is None else self._broken[1])
        return Profile(self.modalities, ()), self.snapshot.keyed

    def problem(self) -> Problem | None:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.problem`: a file is invalid."""
        if self._broken is None:
            return None
        since, words = self._broken
        stays = (
            "there is no knowledge graph to learn from"
            if self.snapshot is None
            else "the earlier knowledge graph is used"
        )
        then = f"until the file is valid; it is checked every {self.poll_s:g} s"
        return Problem("graph", f"{words} ({stays})", since, then)

    def status(self) -> dict[str, Any]:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.status`."""
        found, broken = self.snapshot, self._broken
        state = "ok" if found is not None else _UNREAD
        if broken is not None:
            state = f"cannot be used since {stamp(broken[0])}: {broken[1]}"
        if found is None:
            return {"graph": state, "triples": 0, "entities": 0, "relations": 0}
        graph = found.graph
        return {
            "graph": state,
            "triples": len(graph),
            "entities": len(graph.entities),
            "relations": len(graph.relations),
            "triples_with": {name: counts[0] for name, counts in found.told.counts.items()},
            "graph_counts": asdict(found.counts),
            "graph_notes": list(found.notes),
            "fleet_secret": fingerprint(found.secret),
        }

    def close(self) -> None:
        """Nothing to close."""
