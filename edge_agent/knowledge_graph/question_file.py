"""Questions to a knowledge graph, and the file to which they are appended. Synchronous.

A line asks for tails: ``head<TAB>relation``, or ``head<TAB>relation<TAB>?`` with ``?`` for the unknown.
``?<TAB>relation<TAB>tail`` asks for heads. Blank lines and lines that begin with ``#`` are skipped.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISFIFO
from typing import BinaryIO, Final

import structlog

from models.knowledge_graph.data.name_normalization import MAX_BYTES, clean

_log = structlog.get_logger(__name__)
ASKED: Final = "?"
MAX_READ_BYTES: Final = 1 << 20
"""Bytes at a file's end that are read at once; earlier ones are skipped, with a log line."""
_MARK_BYTES: Final = 64
_MAX_LINE: Final = 3 * MAX_BYTES + 256


@dataclass(frozen=True)
class Question:
    """Asks which entities have a relation with one entity.

    Attributes:
        about: the entity.
        relation: as in facts, in either direction.
        heads: ``about`` is the tail, and heads are asked for; else it is the head.
    """

    about: str
    relation: str
    heads: bool = False

    @classmethod
    def of(cls, about: str, relation: str, *, heads: bool = False) -> "Question":
        """Make a question from names in any spelling.

        Raises:
            ValueError: one is no valid name; the message names it.
        """
        return cls(_name(about, "tail" if heads else "head"), _name(relation, "relation"), heads)


def _name(name: str, what: str) -> str:
    try:
        return clean(name)
    except ValueError as error:
        raise ValueError(f"the {what} {error}") from None


def parse(line: str) -> Question | None:
    """Parse a line; None if it is blank or a comment.

    Raises:
        ValueError: it is not a question; the message says why.
    """
    if not line.strip() or line.startswith("#"):
        return None
    match line.rstrip("\r\n").split("\t"):
        case [about, relation] if about.strip() != ASKED:
            return Question.of(about, relation)
        case [about, relation, last] if last.strip() == ASKED != about.strip():
            return Question.of(about, relation)
        case [first, relation, about] if first.strip() == ASKED != about.strip():
            return Question.of(about, relation, heads=True)
    raise ValueError("is neither 'head<TAB>relation' nor '?<TAB>relation<TAB>tail'")


class QuestionFile:
    """Reads the questions appended since the last read; the whole file if it was replaced.

    A last line without an end is taken if nothing was appended until the next read.

    Args:
        path: may be missing at first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset, self._mark, self._size = -1, 0, b"", -1
        self._closed = False
        self.problem = ""
        """Why the file cannot be read, or what its last invalid line was; empty if there is no problem."""

    def read_new(self) -> list[Question]:
        """New questions, in the file's order; invalid lines are logged and skipped."""
        try:
            if S_ISFIFO(self._path.stat().st_mode):  # opening it would wait for a writer
                raise OSError(errno.ESPIPE, "it is a pipe")  # noqa: TRY301 - reported like the others
            with self._path.open("rb") as file:
                if self._closed:
                    self._closed, self.problem = False, ""
                lines = self._appended(file)
        except FileNotFoundError:
            self._offset, self._mark, self.problem = 0, b"", ""
            return []
        except OSError as error:
            self._report(f"{self._path} cannot be read: {error.strerror}")
            self._closed = True
            return []
        return list(self._parsed(lines))

    def _appended(self, file: BinaryIO) -> list[bytes]:
        inode, size = _stat(file)
        if inode != self._inode or not self._is_grown(file, size):
            self._offset, self._mark, self.problem = 0, b"", ""
        still, self._inode, self._size = size == self._size, inode, size
        start = self._offset
        if size - start > MAX_READ_BYTES:
            start, grown = size - MAX_READ_BYTES, size - start
            self._report(f"{self._path} grew by {grown} bytes; only its last {MAX_READ_BYTES} are read")
        file.seek(start)
        data = file.read(size - start)
        if start > self._offset:  # in the middle of a line
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        end = len(data) if still else data.rfind(b"\n") + 1
        self._offset = start + end
        file.seek(max(0, self._offset - _MARK_BYTES))
        self._mark = file.read(self._offset - file.tell())
        return data[:end].splitlines()

    def _is_grown(self, file: BinaryIO, size: int) -> bool:
        """Whether the bytes that were read are unchanged."""
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def _parsed(self, lines: Iterable[bytes]) -> Iterator[Question]:
        for line in lines:
            try:
                if len(line) > _MAX_LINE:
                    raise ValueError(f"has {len(line)} bytes, at most {_MAX_LINE} are read")  # noqa: TRY301 - reported in one place
                question = parse(line.decode())
            except ValueError as error:
                self._report(f"{self._path}: line {line[:60]!a} {error}")
            else:
                if question is not None:
                    yield question

    def _report(self, words: str) -> None:
        if words != self.problem:
            _log.warning("question_refused", why=words)
        self.problem = words


def _stat(file: BinaryIO) -> tuple[int, int]:
    """Inode and size."""
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size
