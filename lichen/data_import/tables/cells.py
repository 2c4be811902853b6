"""Cells of one column, converted at once; a cell that cannot be converted is named by file, line and column.

Shapes: n rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Misconfigured


@dataclass(frozen=True)
class Cells:
    """Cells of a column in neighbouring rows.

    Attributes:
        path: of the table.
        column: its name.
        cells: text, stripped; or numbers (n,), NaN for an empty cell.
        first_row: of the table, from 1.
        lines: of each row in the file; empty if rows have none.
        comma: decimals are written with a comma.
    """

    path: Path
    column: str
    cells: Sequence[str] | NDArray[np.float64]
    first_row: int = 1
    lines: Sequence[int] = ()
    comma: bool = False

    def numbers(self, *, required: bool = False) -> NDArray[np.float64]:
        """(n,) float64; NaN for an empty cell, unless one is ``required``.

        Raises:
            Misconfigured: a cell is no number, or empty and required.
        """
        if isinstance(self.cells, np.ndarray):
            found: NDArray[np.float64] = self.cells
        else:
            found = self._converted(self.cells)
        if required and not np.isfinite(found).all():
            raise self._refused(int(np.argmin(np.isfinite(found))), "a number")
        return found

    def _converted(self, cells: Sequence[str]) -> NDArray[np.float64]:
        plain = [cell.replace(",", ".") for cell in cells] if self.comma else [*cells]
        try:
            words: NDArray[np.str_] = np.array(plain, np.str_)
            return words.astype(np.float64)  # the usual case, at the speed of numpy
        except ValueError:
            return self.each(self._number, "a number")

    def _number(self, cell: str) -> float:
        return float((cell.replace(",", ".") if self.comma else cell) or "nan")

    def each(self, convert: Callable[[str], float], wanted: str) -> NDArray[np.float64]:
        """(n,) float64, cell by cell.

        Args:
            convert: raises ValueError if a cell is not what it needs.
            wanted: what a cell should be, for the message.

        Raises:
            Misconfigured: a cell cannot be converted.
        """
        found = np.empty(len(self.cells), np.float64)
        for at, cell in enumerate(self.words()):
            try:
                found[at] = convert(cell)
            except (ValueError, OverflowError):
                raise self._refused(at, wanted) from None
        return found

    def words(self) -> list[str]:
        """The cells as text; whole numbers without a fraction, "" for an empty one."""
        if isinstance(self.cells, np.ndarray):
            return ["" if value != value else f"{value:.15g}" for value in self.cells.tolist()]  # noqa: PLR0124 - NaN
        return [*self.cells]

    def _refused(self, at: int, wanted: str) -> Misconfigured:
        cell = self.words()[at]
        found = f"{cell[:60]!r} is not {wanted}" if cell else f"it is empty, {wanted} is needed"
        return Misconfigured(f"{self.path}: {self.place(at)}, column {self.column!r}: {found}")

    def place(self, at: int) -> str:
        """Where a row is in the file."""
        return f"line {self.lines[at]}" if self.lines else f"row {self.first_row + at}"
