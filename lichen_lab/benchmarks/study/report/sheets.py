"""Compact tables of means: one figure under many conditions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.tables import figure

Pivot = Callable[[ResultRow], tuple[str, str]]
"""Maps a row to its line and column."""
_LARGE = 1000


@dataclass(frozen=True)
class Sheet:
    """A table of means.

    Attributes:
        title: heading.
        columns: names of the columns.
        lines: name and values of each line; a value may be None.
        local: index of the column that the others are compared with; None: no colours.
        digits: decimal places.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[float | None, ...]], ...]
    local: int | None = None
    digits: int = 1

    def colour(self, values: Sequence[float | None], place: int) -> str:
        """CSS class of a value: above or below the value in column ``local``."""
        if self.local is None or place == self.local:
            return ""
        value, other = values[place], values[self.local]
        if value is None or other is None or value == other:
            return ""
        return "good" if value > other else "bad"

    def words(self, value: float | None) -> str:
        """A value as text; empty for None."""
        if value is None:
            return ""
        return f"{value:.{self.digits}f}" if value < _LARGE else figure(value)


def pivot(rows: Sequence[ResultRow], place: Pivot, title: str = "", digits: int = 1) -> Sheet:
    """Arrange rows as a sheet; a later row replaces an earlier one in the same place."""
    found = {place(row): row.mean for row in rows}
    lines, columns = (tuple(dict.fromkeys(names)) for names in zip(*found, strict=True))
    values = tuple((line, tuple(found.get((line, column)) for column in columns)) for line in lines)
    return Sheet(title, columns, values, digits=digits)
