"""Reads the device's knowledge graph from the files of ``[graph]``; trusts nothing in them.

Files are read when their inode, time or size changes. A file that may still be written is not reported as
invalid: it counts once it has not changed for a while, or when its error persists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from edge_agent.config.knowledge_graph import KnowledgeGraphSettings
from edge_agent.identity import fleet_secret as secrets
from edge_agent.knowledge_graph.fact_files import FactFiles, Stat, stat_of
from models.knowledge_graph.data.files import BOUNDS, Bounds, read_features, read_masks
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.data.loading import masked
from models.knowledge_graph.data.merging import ROOM, MergeCounts, MergeRoom, merge
from models.materials import KINDS, HeaderStatistics
from protocol.errors import Misconfigured, Refused
from protocol.tasks.options import KnowledgeGraphTask
from protocol.tasks.task import Task

_MIB: Final = 1 << 20
_NAME_BYTES: Final = 1024
"""Of an entity in an npz: numpy stores all names with the length of the longest, four bytes a character."""
_PATIENCE: Final = 12
"""Multiple of ``rest_s``: an error that persists so long is reported, even if other files still change."""
_STRANGERS: Final = 4
"""Files of features may name at most this multiple of the entities that a device may have."""


@dataclass(frozen=True, eq=False)
class KnowledgeGraphSnapshot:
    """A device's knowledge graph at one time.

    Attributes:
        graph: names, facts and features.
        keyed: the same without names: entity e of ``graph.entities`` has the key ``entity_keys_E16[e]``, and
            relations alike.
        secret: fingerprint of the key that names are hashed with (``models.knowledge_graph.data.keys.key``).
        counts: what was read from the files, and what was not.
        notes: hints for the operator.
        told: counts for the state message.
    """

    graph: KnowledgeGraph
    keyed: KeyedGraph
    secret: bytes = field(repr=False)
    counts: MergeCounts
    notes: tuple[str, ...]
    told: HeaderStatistics


class KnowledgeGraphReader:
    """Reads one device's knowledge graph repeatedly. Not thread-safe.

    Args:
        settings: names the files.
        secret_file: of the fleet.
        task: on knowledge graphs; bounds what is read.
        modalities: those of the task that are read.
        rest_s: a file that has not changed for this long is not being written.
    """

    def __init__(
        self,
        settings: KnowledgeGraphSettings,
        secret_file: Path,
        task: Task,
        modalities: Sequence[str],
        rest_s: float = 0.0,
    ) -> None:
        if task.graph is None:
            raise Misconfigured(f"task {task.name!r} is of windows: it has no table [graph]")
        self._task, self._secret_file, self._rest_s = task, secret_file, rest_s
        self._features = {name: settings.features[name] for name in modalities}
        self._foreign = tuple(name for name in settings.features if name not in self._features)
        self._masks = settings.masks
        self._shape, self._bounds = task.graph, _bounds(task.graph)
        self._facts = FactFiles(settings.triples, _room(task.graph), self._bounds)
        self._known: KnowledgeGraphSnapshot | None = None
        self._beside: tuple[Stat | None, ...] = ()
        """Of the files of features and masks, at their last read."""
        self._beside_counts = MergeCounts()
        self._since: dict[Path, tuple[Stat | None, float]] = {}
        """Time of each file's last change."""
        self._done: dict[Path, Stat | None] | None = None
        self._broken: tuple[dict[Path, Stat | None], str] | None = None
        self._doubt: tuple[str, float] | None = None
        """An error of a file that may be half written, and its time."""

    def read_if_changed(self, now: float) -> KnowledgeGraphSnapshot | None:
        """The knowledge graph if the files changed; None if they did not, or may be half written.

        Args:
            now: monotonic seconds.

        Raises:
            Misconfigured: a file is missing or invalid; names file and line or key.
        """
        try:
            facts = self._facts.paths()
        except Misconfigured:
            self._done = None  # so that its repair counts as a change
            raise
        stats = {path: stat_of(path) for path in (*facts, *self._others)}
        if stats == self._done:
            return None
        if self._broken is not None and self._broken[0] == stats:
            raise Misconfigured(self._broken[1])
        rested = self._rested(stats, now)
        try:
            whole = self._facts.read({path: stats[path] for path in facts}, rested)
            found = self._put_together(tuple(stats[path] for path in self._others))
        except Misconfigured as error:
            self._done = None
            if self._doubt is None or self._doubt[0] != str(error):
                self._doubt = str(error), now
            if rested != stats.keys() and now - self._doubt[1] < _PATIENCE * self._rest_s:
                return None
            self._broken = stats, str(error)
            raise
        self._broken, self._doubt, self._done = None, None, stats if whole else None
        return found

    def _rested(self, stats: dict[Path, Stat | None], now: float) -> set[Path]:
        """Files that have not changed for ``rest_s``."""
        before, self._since = self._since, {}
        for path, stat in stats.items():
            old = before.get(path)
            self._since[path] = (stat, now) if old is None or old[0] != stat else old
        return {path for path, (_, since) in self._since.items() if now - since >= self._rest_s}

    @property
    def _others(self) -> tuple[Path, ...]:
        masks = () if self._masks is None else (self._masks,)
        return (self._secret_file, *self._features.values(), *masks)

    def _put_together(self, beside: tuple[Stat | None, ...]) -> KnowledgeGraphSnapshot:
        facts, known = self._facts.graph, self._known
        if known is None or beside != self._beside or known.graph.entities != facts.entities:
            secret = secrets.read(self._secret_file)
            graph, counts = self._with_features(facts)
        elif known.graph.triples_N3 is facts.triples_N3:
            return known
        else:
            graph = replace(known.graph, relations=facts.relations, triples_N3=facts.triples_N3)
            secret, counts = known.secret, self._beside_counts
        keyed = KeyedGraph.of(graph, secret, self._task)
        told = KINDS["graph"].told(keyed, self._task, [*self._features])
        notes = self._notes(self._facts.counts, counts, graph)
        self._known = KnowledgeGraphSnapshot(graph, keyed, secret, self._facts.counts + counts, notes, told)
        self._beside, self._beside_counts = beside, counts
        return self._known

    def _with_features(self, graph: KnowledgeGraph) -> tuple[KnowledgeGraph, MergeCounts]:
        """Add features and masks, read again: they may hold rows of a new entity."""
        counts, dims = MergeCounts(), {one.name: one.dim for one in self._shape.features}
        for name, path in self._features.items():
            new = read_features(path, self._bounds)
            if new.values_nF.shape[1] != dims[name]:
                raise Misconfigured(
                    f"{path}: key 'values' has {new.values_nF.shape[1]} numbers of each entity, task "
                    f"{self._task.name!r} says graph.features: {name}, dim = {dims[name]}"
                )
            try:
                graph, taken = merge(graph, features={name: new})
            except Refused as error:
                raise Misconfigured(f"{path}: {error.detail}") from None
            counts += taken
        if self._masks is None:
            return graph, counts
        masks = read_masks(self._masks, self._bounds)
        kept = [m for m, name in enumerate(masks.modalities) if name not in self._foreign]
        names = tuple(masks.modalities[m] for m in kept)
        try:
            graph, strangers = masked(
                graph, replace(masks, modalities=names, present_nM=masks.present_nM[:, kept])
            )
        except ValueError as error:
            raise Misconfigured(f"{self._masks}: {error}") from None
        return graph, counts + MergeCounts(strangers=strangers)

    def _notes(self, facts: MergeCounts, beside: MergeCounts, graph: KnowledgeGraph) -> tuple[str, ...]:
        notes, room = [], _room(self._shape)
        bare = [
            name for name, has_E in zip(graph.modalities, graph.present_EM.T, strict=True) if not has_E.any()
        ]
        if len(graph) and bare:
            notes.append(
                f"no entity of a fact has features of {', '.join(bare)}: an entity must be written alike in "
                "the files of graph.features and graph.triples, and case counts"
            )
        if facts.no_room:
            notes.append(
                f"{facts.no_room} facts were left out: there is room for {room.entities} entities, "
                f"{room.relations} relations and {room.triples} facts (graph.max_* of the task)"
            )
        if beside.strangers:
            notes.append(f"{beside.strangers} rows of features or masks are of entities without a fact")
        if self._foreign:
            notes.append(f"features that are not read here: {', '.join(self._foreign)}")
        return tuple(notes)


def _room(shape: KnowledgeGraphTask) -> MergeRoom:
    return MergeRoom(
        min(shape.max_entities, ROOM.entities), min(shape.max_relations, ROOM.relations), shape.max_triples
    )


def _bounds(shape: KnowledgeGraphTask) -> Bounds:
    """Limits of files, from the task's limits: larger files would only fill the device's memory."""
    entities = min(BOUNDS.entities, _STRANGERS * shape.max_entities)
    widest = max((one.dim for one in shape.features), default=1)
    npz_bytes = min(BOUNDS.npz_bytes, 16 * _MIB + entities * (8 * widest + _NAME_BYTES))
    lines, why = max(BOUNDS.lines, 2 * shape.max_triples), f"{_STRANGERS} times the task's graph.max_entities"
    return Bounds(lines, entities, BOUNDS.width, npz_bytes, why)
