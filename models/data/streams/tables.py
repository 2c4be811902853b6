"""Tables on disk, csv and parquet: columns of numbers, and of text where asked for."""

import csv
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Misconfigured

SUFFIXES: Final = (".csv", ".parquet")
NONE: Final[Mapping[str, str]] = MappingProxyType({})
_SHOWN: Final = 12
_COLUMNS: Final = "a column is t, label, target.<name> or <modality>.<channel>"


@dataclass(frozen=True)
class Table:
    """The columns of a file, each with a cell for every row.

    Attributes:
        path: the file.
        numbers: (n,) float64 by column; an empty cell is NaN.
        words: text by column, stripped of spaces; an empty cell is "".
        lines: the line of each row in a csv file; empty if rows have none.
    """

    path: Path
    numbers: dict[str, NDArray[np.float64]]
    words: dict[str, list[str]] = field(default_factory=dict)
    lines: Sequence[int] = ()

    def place(self, row: int) -> str:
        """Where the row is in the file: ``line 7``, or ``row 5``, counted from row 0."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"


def everything(_name: str) -> bool:
    """Read every column."""
    return True


def read(path: Path, words: Mapping[str, str] = NONE, wanted: Callable[[str], bool] = everything) -> Table:
    """Read a table by its suffix, one of :data:`SUFFIXES`.

    Args:
        path: the file.
        words: columns that are read as text, with the key that names each in the task.
        wanted: whether another column is read, by its name.

    Raises:
        Misconfigured: it is damaged, one of ``words`` is missing, or another column holds something else than
            numbers; names file, line and column.
        OSError: it cannot be read.
    """
    return (_read_csv if path.suffix == ".csv" else _read_parquet)(path, words, wanted)


def header(path: Path) -> tuple[str, ...]:
    """The names of a table's columns; none if it is damaged, which :func:`read` reports.

    Raises:
        OSError: it cannot be read.
    """
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                return tuple(next(csv.reader(file), []))
        import pyarrow.parquet as pq  # noqa: PLC0415 - an optional part

        return tuple(pq.read_schema(path).names)
    except (ImportError, ValueError, csv.Error):  # ArrowInvalid is a ValueError
        return ()


def _check_header(path: Path, header: Sequence[str], words: Mapping[str, str]) -> None:
    """Check the header before the cells: a text column under another name would be taken for bad numbers."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise Misconfigured(f"recording {path}: column {twice[0]!r} occurs twice")
    for name, key in words.items():
        if name not in header:
            known = ", ".join(header[:_SHOWN])
            raise Misconfigured(f"{key}: recording {path} has no column {name!r} (columns: {known})")


def _read_csv(path: Path, words: Mapping[str, str], wanted: Callable[[str], bool]) -> Table:
    # utf-8-sig: spreadsheets write a mark before the first column's name
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            return _from_csv(path, next(reader, []), _numbered(reader), words, wanted)
        except (UnicodeDecodeError, csv.Error) as error:
            raise Misconfigured(f"recording {path}: not a csv file in UTF-8: {error}") from None


def _numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line that each ends on."""
    for row in reader:
        yield reader.line_num, row


def _from_csv(
    path: Path,
    header: list[str],
    rows: Iterator[tuple[int, list[str]]],
    words: Mapping[str, str],
    wanted: Callable[[str], bool],
) -> Table:
    _check_header(path, header, words)
    told: dict[int, list[str]] = {at: [] for at, name in enumerate(header) if name in words}
    counted = {at: array("d") for at, name in enumerate(header) if at not in told and wanted(name)}
    lines = array("q")
    for line, row in rows:
        if len(row) != len(header):
            raise Misconfigured(
                f"recording {path}: line {line} has {len(row)} cells, the header {len(header)}"
            )
        for at, words_n in told.items():
            words_n.append(row[at].strip())
        for at, values_n in counted.items():
            values_n.append(_number(path, line, header[at], row[at]))
        lines.append(line)
    numbers = {header[at]: np.array(values_n, np.float64) for at, values_n in counted.items()}
    return Table(path, numbers, {header[at]: words_n for at, words_n in told.items()}, lines)


def _number(path: Path, line: int, name: str, cell: str) -> float:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        hint = "" if "." in name or name == "t" else f"; {_COLUMNS}"
        raise Misconfigured(
            f"recording {path}: line {line}, column {name!r}: {cell!r} is not a number{hint}"
        ) from None


def _read_parquet(path: Path, words: Mapping[str, str], wanted: Callable[[str], bool]) -> Table:
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415 - an optional part
        from pyarrow import ArrowException  # noqa: PLC0415 - an optional part
    except ImportError:
        raise Misconfigured(
            f"recording {path}: reading parquet needs pyarrow: pip install 'lichen[parquet]'"
        ) from None
    try:
        return _from_parquet(path, pq.read_table(path), words, wanted)
    except (
        ArrowException,
        UnicodeDecodeError,
    ) as error:  # names and text are decoded when they are needed
        raise Misconfigured(f"recording {path}: not a parquet file: {error}") from None


def _from_parquet(path: Path, table: Any, words: Mapping[str, str], wanted: Callable[[str], bool]) -> Table:
    names = table.column_names
    _check_header(path, names, words)
    numbers: dict[str, NDArray[np.float64]] = {}
    for name in (name for name in names if name not in words and wanted(name)):
        try:
            numbers[name] = np.asarray(table[name].to_numpy(), dtype=np.float64)
        except (TypeError, ValueError):
            raise Misconfigured(
                f"recording {path}: column {name!r} is {table[name].type}, not numbers"
            ) from None
    return Table(path, numbers, {name: [*map(_word, table[name].to_pylist())] for name in words})


def _word(cell: object) -> str:
    """A cell of any type as text: whole numbers without a fraction, a missing one as ""."""
    if cell is None or cell != cell:  # noqa: PLR0124 - NaN is not itself
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()
