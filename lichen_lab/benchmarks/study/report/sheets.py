"""Tables of means alone, in which one figure of many conditions is read at a look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.tables import figure

Pivot = Callable[[ResultRow], tuple[str, str]]
"""Where a row stands: its line and its column."""
_LARGE = 1000


@dataclass(frozen=True)
class Sheet:
    """Means, line by line.

    Attributes:
        title: above it.
        columns: their names.
        lines: each one's name and its values, None where there is none.
        local: the column that the others are coloured by; None: none.
        digits: after the point.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[float | None, ...]], ...]
    local: int | None = None
    digits: int = 1

    def colour(self, values: Sequence[float | None], place: int) -> str:
        """CSS class of a value: above or below the column that is compared with."""
        if self.local is None or place == self.local:
            return ""
        value, other = values[place], values[self.local]
        if value is None or other is None or value == other:
            return ""
        return "good" if value > other else "bad"

    def words(self, value: float | None) -> str:
        """A value as it is written; nothing where there is none."""
        if value is None:
            return ""
        return f"{value:.{self.digits}f}" if value < _LARGE else figure(value)


def pivot(rows: Sequence[ResultRow], place: Pivot, title: str = "", digits: int = 1) -> Sheet:
    """Rows as a sheet; of two in one place the last."""
    found = {place(row): row.mean for row in rows}
    lines, columns = (tuple(dict.fromkeys(names)) for names in zip(*found, strict=True))
    values = tuple((line, tuple(found.get((line, column)) for column in columns)) for line in lines)
    return Sheet(title, columns, values, digits=digits)
