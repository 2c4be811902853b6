"""Times in tables: seconds, milliseconds, microseconds, nanoseconds, or ISO 8601. Pure.

Shapes: n rows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen.data_import.tables.cells import Cells

UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_WORDS: Final = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "iso": "ISO 8601",
}
_ISO: Final = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}[T ].*")
_EPOCH_FROM: Final = 1e9
"""Seconds since 1970 of a time after 2001, the smallest that counts as an absolute one."""
_EPOCH_TO: Final = 1e10
_ROUND_S: Final = frozenset({60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 86400.0})
"""Usual periods of slow sensors."""
_LONGEST_STEP_S: Final = 5.0
"""Whole steps that are longer than this are milliseconds or less: sensors are seldom so slow."""


@dataclass(frozen=True)
class TimeUnit:
    """The unit of a column of times.

    Attributes:
        unit: ``s``, ``ms``, ``us``, ``ns`` or ``iso``.
        why: what the guess is from; empty: it was asked for.
    """

    unit: str
    why: str = ""

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self.unit] + (f" ({self.why})" if self.why else "")

    def seconds(self, cells: Cells) -> NDArray[np.float64]:
        """(n,) seconds; those of ISO 8601 without a zone are UTC.

        Raises:
            Misconfigured: a cell is empty or no time; names file, line and column.
        """
        if self.unit != "iso":
            return cells.numbers(required=True) * UNITS[self.unit]
        return cells.each(_of_iso, "a time in ISO 8601, such as 2024-05-01T12:00:00.250")


def is_time(cell: str) -> bool:
    """Whether a cell may be a time: a number, or ISO 8601."""
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return _ISO.fullmatch(cell) is not None
    return True


def guess(column: str, cells: Sequence[str], chosen: str | None) -> TimeUnit:
    """The unit of the times in the first cells of a column; ``chosen``: by the command line."""
    if chosen is not None:
        return TimeUnit(chosen)
    filled = [cell for cell in cells if cell]
    if any(_ISO.fullmatch(cell) for cell in filled):
        return TimeUnit("iso", "by its form")
    ending = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower().rstrip(")] "))[-1]
    if ending in UNITS and ending != column.lower():
        return TimeUnit(ending, f"by the name {column!r}")
    times = np.array([float(cell.replace(",", ".")) for cell in filled], np.float64)
    largest = float(np.abs(times).max()) if len(times) else 0.0
    for unit, factor in UNITS.items():
        if _EPOCH_FROM <= largest * factor < _EPOCH_TO:
            return TimeUnit(
                unit, f"since 1970: {largest:.0f} is {datetime.fromtimestamp(largest * factor, UTC):%Y-%m-%d}"
            )
    steps = np.abs(np.diff(times))
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    if step and step not in _ROUND_S and np.array_equal(times, np.rint(times)):
        for unit in ("ms", "us", "ns"):
            if _LONGEST_STEP_S < step <= 1000 * _LONGEST_STEP_S * (UNITS["ms"] / UNITS[unit]):
                return TimeUnit(unit, f"whole numbers, {step:g} from row to row")
    return TimeUnit("s", f"{step:.4g} from row to row" if step else "nothing speaks for another unit")


def _of_iso(cell: str) -> float:
    found = datetime.fromisoformat(cell)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
