"""Words of classes in imported data, and what is written for them: names, or indices from 0. Pure.

Shapes: n labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen.data_import.tables.cells import Cells
from models.data.labels.labels import PREFIX
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL

_MOST: Final = 1024
"""Classes of a task."""
_NONE: Final = frozenset({"", "-1", "nan", "null", "none", "n/a", "unlabelled", "unlabeled", "unknown"})
"""Words for no label, in small letters."""


@dataclass(frozen=True)
class WrittenLabels:
    """What is written for codes: text by code, numbers by code, or the values themselves."""

    dtype: np.dtype[Any]
    table: NDArray[Any] | None = None

    def of(self, codes: NDArray[Any]) -> NDArray[Any]:
        """(n,) as written; the last entry of the table is for none."""
        if self.table is None:
            return codes
        at = np.where(np.isnan(codes.astype(np.float64)), -1, codes).astype(np.int64)
        found: NDArray[Any] = self.table[at]
        return found


@dataclass
class ClassWords:
    """The words of all labels, each with a code from 0 in the order of its first use.

    Attributes:
        renamed: class names by word; "": no label.
        codes: by track (``label``, ``target/<name>``) the code of each word.
        numbers: tracks whose values are numbers and no classes.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    codes: dict[str, dict[str, int]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def code(self, word: str, track: str = LABEL) -> int:
        """The code of a word; -1 if it stands for no label.

        Raises:
            Misconfigured: there are more classes than a task may have.
        """
        plain = _whole(word.strip())
        if plain in self.renamed:
            self.used.add(plain)
            plain = self.renamed[plain]
        known = self.codes.setdefault(track, {})
        if (found := known.get(plain)) is not None:
            return found
        if plain.casefold() in _NONE:
            return -1
        if len(known) >= _MOST:
            raise Misconfigured(
                f"{track}: over {_MOST:,} different words, {plain[:40]!r} among them: are these classes? "
                "--label names the column of the classes, --target NAME=COLUMN one of numbers"
            )
        return known.setdefault(plain, len(known))

    def codes_of(self, words: Sequence[str], track: str = LABEL) -> NDArray[np.int32]:
        """(n,) codes of words."""
        code = {word: self.code(word, track) for word in dict.fromkeys(words)}
        return np.array([code[word] for word in words], np.int32)

    def values_of(self, cells: Cells, track: str) -> NDArray[np.float64]:
        """(n,) values of a further target: numbers, or codes if the first filled cell is no number.

        Raises:
            Misconfigured: a cell is no number after numbers; names file, line and column.
        """
        words = cells.words()
        if track not in self.numbers and track not in self.codes and any(words):
            first = next(word for word in words if word)
            if _is_number(first):
                self.numbers.add(track)
        if track in self.numbers or not any(words):
            return cells.numbers()
        codes = self.codes_of(words, track).astype(np.float64)
        return np.where(codes < 0, np.nan, codes)

    def names(self, track: str = LABEL) -> tuple[str, ...]:
        """The classes of a track, as the recordings name them, by index or by name."""
        written = self._names(track)
        known = self.codes.get(track, {})
        if self._counts_from_zero(track):
            return tuple(sorted(known, key=int))
        return tuple(
            sorted(written.values(), key=lambda name: (len(name), name) if _is_plain(name) else (0, name))
        )

    def by_code(self) -> tuple[str, ...]:
        """The names of the classes of ``label``, in the order of their codes."""
        return tuple(
            self.codes.get(LABEL, {}) if self._counts_from_zero(LABEL) else self._names(LABEL).values()
        )

    def written(self, track: str) -> WrittenLabels:
        """What is written for the codes of a track."""
        if track in self.numbers:
            return WrittenLabels(np.dtype(np.float64))
        known = self.codes.get(track, {})
        if self._counts_from_zero(track):
            none = -1.0 if track == LABEL else np.nan
            table = np.array([*(float(word) for word in known), none], np.float64)
            return WrittenLabels(table.dtype, table)
        table = np.array([*self._names(track).values(), ""], np.str_)
        return WrittenLabels(table.dtype, table)

    def _names(self, track: str) -> dict[str, str]:
        """By word, its name: numbers that do not count from 0 get a prefix, so that no reader counts them."""
        known = self.codes.get(track, {})
        if not all(_is_number(word) for word in known):
            return {word: word for word in known}
        prefix = "class" if track == LABEL else track.removeprefix(f"{PREFIX}/")
        return {word: f"{prefix}_{word}" for word in known}

    def _counts_from_zero(self, track: str) -> bool:
        known = self.codes.get(track, {})
        return "0" in known and all(word.isdecimal() and int(word) < _MOST for word in known)

    def notes(self) -> list[str]:
        """What was done with numbers that are no indices, and class names that nothing used."""
        found = []
        for track, known in self.codes.items():
            if known and all(_is_number(word) for word in known) and not self._counts_from_zero(track):
                words = sorted(known, key=float)
                names = self._names(track)
                found.append(
                    f"{track}: {words[0]} to {words[-1]} do not count from 0: the classes are named "
                    f"{names[words[0]]} to {names[words[-1]]} (--class {words[0]}=NAME names one)"
                )
        unused = [word for word in self.renamed if word not in self.used]
        return [*found, *(f"--class {word}={self.renamed[word]}: no label is {word!r}" for word in unused)]


def _whole(word: str) -> str:
    """A whole number without its fraction: ``3.0`` is ``3``."""
    head, dot, fraction = word.partition(".")
    return head if dot and head.lstrip("-").isdecimal() and not fraction.strip("0") else word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_plain(name: str) -> bool:
    """Whether names are told apart by a number at their end."""
    return name.rpartition("_")[2].isdecimal()
