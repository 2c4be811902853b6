"""Files of facts that grow while they are read: appended lines are merged, other changes cause a full read.

While a file may still be written, only whole lines are taken: half a name would be another name. A last line
without an end, and a file that is rewritten in place, are taken once the file has not changed for a while.

Shapes: as in :mod:`models.knowledge_graph.data.graph`.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import IO, Final

from models.knowledge_graph.data.files import Bounds, Triple, facts_in, lines_of
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.merging import MergeCounts, MergeRoom, empty, merge
from protocol.errors import Misconfigured

Stat = tuple[int, int, int]
"""A file's inode, time of change in ns, and bytes."""
_CHUNK: Final = 65_536
"""Facts that are merged at once, so that no more are in memory by name."""
_BLOCK: Final = 1 << 20
_MAX_FILES: Final = 1000


def stat_of(path: Path) -> Stat | None:
    """Inode, time of change and size; None if the file is missing, not accessible, or not regular."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if S_ISREG(found.st_mode) else None


@dataclass(frozen=True)
class _ReadPosition:
    """How much of a file was read: ``size`` bytes of whole lines with this digest.

    ``stat`` is from before the read. ``tail``: a last line without an end was read too; ``waits``: one was
    left.
    """

    stat: Stat
    size: int = 0
    lines: int = 0
    digest: bytes = b""
    tail: bool = False
    waits: bool = False


@dataclass
class FactFiles:
    """The facts of some files and folders, merged into one knowledge graph without features. Not thread-safe.

    Attributes:
        sources: files, and folders of which every ``*.tsv`` is read.
        room: of the knowledge graph; facts beyond it are counted.
        bounds: of each file.
        graph: the facts read.
        counts: facts read and dropped.
    """

    sources: Sequence[Path]
    room: MergeRoom
    bounds: Bounds
    graph: KnowledgeGraph = field(default_factory=empty)
    counts: MergeCounts = field(default_factory=MergeCounts)
    _taken: dict[Path, _ReadPosition] = field(default_factory=dict)

    def paths(self) -> tuple[Path, ...]:
        """All files, those of a folder sorted by name.

        Raises:
            Misconfigured: a folder cannot be listed, or there are too many files.
        """
        found: dict[Path, None] = {}
        for source in self.sources:
            if _is_folder(source):
                try:
                    inside = sorted(path for path in source.iterdir() if _counts(path))
                except OSError as error:
                    raise Misconfigured(f"graph.triples: {source}: {error.strerror}") from None
                found |= dict.fromkeys(inside)
            else:
                found[source] = None
        if len(found) > _MAX_FILES:
            raise Misconfigured(f"graph.triples: {len(found)} files, at most {_MAX_FILES} are read")
        return tuple(found)

    def read(self, stats: Mapping[Path, Stat | None], rested: Collection[Path]) -> bool:
        """Update the knowledge graph from the files.

        Args:
            stats: of :meth:`paths`, from just now.
            rested: files that have not changed for a while: their last lines count without an end.

        Returns:
            Whether everything was read; else a last line waits for its end.

        Raises:
            Misconfigured: a file is missing or unreadable, or a line is no fact; nothing has changed.
        """
        graph, counts, taken = self.graph, self.counts, dict(self._taken)
        grown = {path: _can_continue(path, before, stats.get(path), rested) for path, before in taken.items()}
        if not all(grown.values()):
            graph, counts, taken = empty(), MergeCounts(), {}
        for path, stat in stats.items():
            if stat is None:
                raise Misconfigured(f"graph.triples: {path}: no such file, or access is denied")
            before = taken.get(path)
            rests = path in rested
            if before is None or before.stat != stat or (before.waits and rests):
                reader = _Reader(path, before or _ReadPosition(stat), self.bounds, rested=rests)
                graph, new = self._merge(graph, reader)
                counts, taken[path] = counts + new, reader.position(stat)
        self.graph, self.counts, self._taken = graph, counts, taken
        return not any(one.waits for one in taken.values())

    def _merge(self, graph: KnowledgeGraph, reader: "_Reader") -> tuple[KnowledgeGraph, MergeCounts]:
        counts, facts = MergeCounts(), reader.facts()
        try:
            while chunk := [*islice(facts, _CHUNK)]:
                graph, new = merge(graph, chunk, room=self.room)
                counts += new
        except OSError as error:
            raise Misconfigured(f"{reader.path}: cannot be read as facts: {error.strerror}") from None
        return graph, counts


class _Reader:
    """Reads the facts appended to a file since its last position."""

    def __init__(self, path: Path, before: _ReadPosition, bounds: Bounds, *, rested: bool) -> None:
        self.path = path
        self._before, self._bounds, self._rested = before, bounds, rested
        self._size, self._lines = before.size, before.lines
        self._hash = hashlib.blake2b()
        self._tail = self._waits = False

    def facts(self) -> Iterator[Triple]:
        with self.path.open("rb") as file:
            for block in _blocks(file, self._before.size):
                self._hash.update(block)
            if self._before.size and self._hash.digest() != self._before.digest:
                raise Misconfigured(f"{self.path}: it was changed while it was read")
            lines = self._whole_lines(file)
            for triple in facts_in(lines, self.path, self._bounds, self._before.lines):
                if triple is not None:
                    yield triple

    def _whole_lines(self, file: IO[bytes]) -> Iterator[bytes]:
        for line in lines_of(file, self.path, self._before.lines):
            if line.endswith(b"\n"):
                self._size, self._lines = self._size + len(line), self._lines + 1
                self._hash.update(line)
            elif self._rested:
                self._tail = True
            else:
                self._waits = True
                return
            yield line

    def position(self, stat: Stat) -> _ReadPosition:
        """The position after :meth:`facts`."""
        return _ReadPosition(stat, self._size, self._lines, self._hash.digest(), self._tail, self._waits)


def _counts(path: Path) -> bool:
    """Like ``*.tsv`` of a shell: without the hidden files of editors."""
    return path.suffix == ".tsv" and not path.name.startswith(".")


def _is_folder(path: Path) -> bool:
    """Whether it is a folder; one without access is reported when it is read."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _can_continue(path: Path, before: _ReadPosition, stat: Stat | None, rested: Collection[Path]) -> bool:
    """Whether the file only grew, so that reading can continue.

    Raises:
        Misconfigured: it is being rewritten in place: its present content is incomplete, and the facts
            missing from it, with what the device learned of them, would be lost.
    """
    if stat == before.stat:
        return True
    if stat is not None and _has_same_start(path, before, stat):
        return not before.tail  # which may have become longer
    if stat is not None and stat[0] == before.stat[0] and path not in rested:
        raise Misconfigured(
            f"graph.triples: {path}: it is rewritten in place over and over; write another file and rename it"
        )
    return False


def _has_same_start(path: Path, before: _ReadPosition, stat: Stat) -> bool:
    """Whether the file still begins with the lines that were read."""
    if stat[2] < before.size:
        return False
    found = hashlib.blake2b()
    try:
        with path.open("rb") as file:
            for block in _blocks(file, before.size):
                found.update(block)
    except OSError:
        return False
    return found.digest() == before.digest


def _blocks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The next ``size`` bytes of a file."""
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        size -= len(block)
        yield block
