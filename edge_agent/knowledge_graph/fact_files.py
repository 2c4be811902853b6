"""Files of facts that grow while they are read: what was appended is merged, all else is read anew.

Only whole lines are taken while a file may be written: half a name would be another name. A last line without
an end is taken once the file has rested, and so is a file that is written anew in its place.

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
"""Of a file: inode, time of change in ns, bytes."""
_CHUNK: Final = 65_536
"""Facts that are merged at once: no more are in memory by name."""
_BLOCK: Final = 1 << 20
_MAX_FILES: Final = 1000


def stat_of(path: Path) -> Stat | None:
    """What a file looks like from outside; None: there is none, it is closed to us, or it is a pipe, say."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if S_ISREG(found.st_mode) else None


@dataclass(frozen=True)
class _ReadPosition:
    """What was taken of a file: so many bytes (``size``), which are so many whole lines with this digest.

    ``stat`` is of the file before it was read. ``tail``: a last line without an end was taken too;
    ``waits``: one was left.
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
        sources: files, and folders whose ``*.tsv`` all count.
        room: of the knowledge graph; what does not fit is counted.
        bounds: of each file.
        graph: what was read.
        counts: what was taken and dropped.
    """

    sources: Sequence[Path]
    room: MergeRoom
    bounds: Bounds
    graph: KnowledgeGraph = field(default_factory=empty)
    counts: MergeCounts = field(default_factory=MergeCounts)
    _taken: dict[Path, _ReadPosition] = field(default_factory=dict)

    def paths(self) -> tuple[Path, ...]:
        """All files, those of a folder in the order of their names.

        Raises:
            Misconfigured: a folder cannot be looked into, or there are too many.
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
        """Bring the knowledge graph to what the files hold.

        Args:
            stats: of :meth:`paths`, from just now.
            rested: those that have not changed for a while: their last lines count without an end.

        Returns:
            Whether all was taken; else a last line waits for its end.

        Raises:
            Misconfigured: a file is not there or cannot be read, or a line is no fact; all stays as it was.
        """
        graph, counts, taken = self.graph, self.counts, dict(self._taken)
        goes_on = {path: _goes_on(path, before, stats.get(path), rested) for path, before in taken.items()}
        if not all(goes_on.values()):
            graph, counts, taken = empty(), MergeCounts(), {}
        for path, stat in stats.items():
            if stat is None:
                raise Misconfigured(f"graph.triples: {path}: no such file, or it is closed to us")
            before = taken.get(path)
            rests = path in rested
            if before is None or before.stat != stat or (before.waits and rests):
                reader = _Reader(path, before or _ReadPosition(stat), self.bounds, rested=rests)
                graph, new = self._merged(graph, reader)
                counts, taken[path] = counts + new, reader.taken(stat)
        self.graph, self.counts, self._taken = graph, counts, taken
        return not any(one.waits for one in taken.values())

    def _merged(self, graph: KnowledgeGraph, reader: "_Reader") -> tuple[KnowledgeGraph, MergeCounts]:
        counts, facts = MergeCounts(), reader.facts()
        try:
            while chunk := [*islice(facts, _CHUNK)]:
                graph, new = merge(graph, chunk, room=self.room)
                counts += new
        except OSError as error:
            raise Misconfigured(f"{reader.path}: cannot be read as facts: {error.strerror}") from None
        return graph, counts


class _Reader:
    """The facts that a file has beyond what was taken of it before."""

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
            lines = self._whole(file)
            for triple in facts_in(lines, self.path, self._bounds, self._before.lines):
                if triple is not None:
                    yield triple

    def _whole(self, file: IO[bytes]) -> Iterator[bytes]:
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

    def taken(self, stat: Stat) -> _ReadPosition:
        """After :meth:`facts`: all that was taken by now."""
        return _ReadPosition(stat, self._size, self._lines, self._hash.digest(), self._tail, self._waits)


def _counts(path: Path) -> bool:
    """As ``*.tsv`` of a shell: not what editors hide beside a file."""
    return path.suffix == ".tsv" and not path.name.startswith(".")


def _is_folder(path: Path) -> bool:
    """Whether it is one that we may look at; what is closed to us is told where it is read."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _goes_on(path: Path, before: _ReadPosition, stat: Stat | None, rested: Collection[Path]) -> bool:
    """Whether it is enough to read on where a file was left.

    Raises:
        Misconfigured: it is being written anew in its place: what is in it now is not all that will be, and
            what a device has learned of the rest would be lost.
    """
    if stat == before.stat:
        return True
    if stat is not None and _stands(path, before, stat):
        return not before.tail  # which may have got longer
    if stat is not None and stat[0] == before.stat[0] and path not in rested:
        raise Misconfigured(
            f"graph.triples: {path}: it is being written anew and does not rest; write it beside, and rename "
            "it"
        )
    return False


def _stands(path: Path, before: _ReadPosition, stat: Stat) -> bool:
    """Whether the whole lines that were taken of a file are still at its beginning."""
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
