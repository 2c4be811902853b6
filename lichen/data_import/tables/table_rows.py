"""Tables in chunks of rows, so that a file of any length needs little memory: csv, tsv and parquet."""

import csv
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from lichen.data_import.tables.cells import Cells
from protocol.errors import Misconfigured

SUFFIXES: Final = (".csv", ".tsv", ".txt", ".parquet")
CHUNK_ROWS: Final = 16_384
_FIRST_ROWS: Final = 200
_LONGEST_LINE: Final = 1 << 20
_DELIMITERS: Final = (",", ";", "\t", "|")
_DECIMAL: Final = re.compile(r"-?[0-9]+,[0-9]+")


@dataclass(frozen=True)
class TableStart:
    """The beginning of a table.

    Attributes:
        path: of the file.
        names: of the columns.
        rows: the first rows, as text.
        delimiter: between cells; empty: parquet.
        comma: decimals are written with a comma.
        has_header: the first line has the names.
    """

    path: Path
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    delimiter: str = ""
    comma: bool = False
    has_header: bool = True


Progress = Callable[[int], None]
"""Takes the bytes that were read since the last call."""


def start(path: Path, columns: Sequence[str] = ()) -> TableStart:
    """Read the names and first rows of a table.

    Args:
        path: the file.
        columns: names for a table without a header; empty: the first line has them.

    Raises:
        Misconfigured: it is damaged, empty, or has no header; names the file.
        OSError: it cannot be read.
    """
    found = _start_parquet(path) if path.suffix == ".parquet" else _start_csv(path, columns)
    twice = sorted({name for name in found.names if found.names.count(name) > 1})
    if twice:
        raise Misconfigured(f"{path}: column {twice[0]!r} occurs twice")
    return found


def chunks(
    table: TableStart, numbers: Collection[str], words: Collection[str], progress: Progress
) -> Iterator[dict[str, Cells]]:
    """The rows of a table, at most :data:`CHUNK_ROWS` at a time.

    Args:
        table: its beginning.
        numbers: columns to read.
        words: further columns, which may hold text.
        progress: is called with the bytes read.

    Raises:
        Misconfigured: a row has another number of cells, or the file is damaged; names file and line.
        OSError: it cannot be read.
    """
    wanted = [name for name in table.names if name in {*numbers, *words}]
    read = _chunks_csv if table.delimiter else _chunks_parquet
    yield from read(table, wanted, progress)


def _start_csv(path: Path, columns: Sequence[str]) -> TableStart:
    with _open(path) as file:
        lines = [*islice(_lines(path, file, _nothing), 1)]
    if not lines or not lines[0].strip():
        raise Misconfigured(f"{path}: its first line is empty; a table begins with the names of its columns")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    with _open(path) as file:
        rows = [row for row in islice(_rows(path, file, delimiter, _nothing), _FIRST_ROWS + 1) if row[1]]
    cells = [tuple(cell.strip() for cell in row) for _, row in rows]
    first = cells[0]
    if columns:
        _check_columns(path, columns, first)
        names, body = tuple(columns), cells
    else:
        _refuse_no_header(path, first)
        names, body = first, cells[1:]
    comma = delimiter != "," and any(_DECIMAL.fullmatch(cell) for row in body for cell in row)
    return TableStart(path, names, tuple(body[:_FIRST_ROWS]), delimiter, comma, not columns)


def _check_columns(path: Path, columns: Sequence[str], first: Sequence[str]) -> None:
    if len(columns) != len(_without_last_empty(first, len(columns))):
        raise Misconfigured(f"--columns: {len(columns)} names, and {path} has {len(first)} columns")


def _refuse_no_header(path: Path, first: Sequence[str]) -> None:
    try:
        [float(cell.replace(",", ".")) for cell in first if cell]
    except ValueError:
        return
    raise Misconfigured(
        f"{path}: its first line holds numbers alone, no names of columns: name them in their order, "
        "--columns t,acc.x,acc.y,acc.z"
    )


def _nothing(_count: int) -> None:
    """No progress to show."""


def _open(path: Path) -> IO[str]:
    # utf-8-sig: spreadsheets write a mark before the first column's name
    return path.open(newline="", encoding="utf-8-sig")


def _lines(path: Path, file: IO[str], progress: Progress) -> Iterator[str]:
    """Lines of bounded length."""
    number = 0
    while True:
        number += 1
        try:
            line = file.readline(_LONGEST_LINE)
        except UnicodeDecodeError as error:
            raise Misconfigured(
                f"{path}: line {number} or after it: not text in UTF-8: {error.reason}"
            ) from None
        if not line:
            return
        if len(line) == _LONGEST_LINE:
            raise Misconfigured(f"{path}: line {number} is longer than {_LONGEST_LINE:,} letters: no table")
        progress(len(line))
        yield line


def _rows(path: Path, file: IO[str], delimiter: str, progress: Progress) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_lines(path, file, progress), delimiter=delimiter)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise Misconfigured(f"{path}: line {reader.line_num}: {error}") from None


def _without_last_empty(row: Sequence[str], width: int) -> Sequence[str]:
    """The row without empty cells beyond ``width``: some programs end each line with a delimiter."""
    return row[:width] if len(row) > width and not any(cell.strip() for cell in row[width:]) else row


def _chunks_csv(table: TableStart, wanted: Sequence[str], progress: Progress) -> Iterator[dict[str, Cells]]:
    width, at = len(table.names), [table.names.index(name) for name in wanted]
    with _open(table.path) as file:
        rows = _rows(table.path, file, table.delimiter, progress)
        if table.has_header:
            next(rows, None)
        first = 1
        while part := [*islice(_checked(table.path, rows, width), CHUNK_ROWS)]:
            lines = [line for line, _ in part]
            columns = list(zip(*(row for _, row in part), strict=True))
            yield {
                name: Cells(
                    table.path, name, [cell.strip() for cell in columns[place]], first, lines, table.comma
                )
                for name, place in zip(wanted, at, strict=True)
            }
            first += len(part)


def _checked(
    path: Path, rows: Iterator[tuple[int, list[str]]], width: int
) -> Iterator[tuple[int, Sequence[str]]]:
    for line, row in rows:
        cells = _without_last_empty(row, width)
        if len(cells) == width:
            yield line, cells
        elif any(cell.strip() for cell in cells):
            raise Misconfigured(f"{path}: line {line} has {len(cells)} cells, the table {width} columns")


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415 - an optional part
        from pyarrow import ArrowException  # noqa: PLC0415 - as above
    except ImportError:
        raise Misconfigured(f"{path}: reading parquet needs pyarrow: pip install 'lichen[parquet]'") from None
    try:
        return pq.ParquetFile(path)
    except ArrowException as error:
        raise Misconfigured(f"{path}: not a parquet file: {error}") from None


def _start_parquet(path: Path) -> TableStart:
    with _parquet(path) as file:
        names = tuple(file.schema_arrow.names)
        first: dict[str, list[str]] = {name: [] for name in names}
        for batch in _batches(path, file, names, _FIRST_ROWS):
            first = {name: _cells(path, name, batch[name], 1).words() for name in names}
            break
    rows = tuple(zip(*first.values(), strict=True))
    return TableStart(path, names, rows)


def _chunks_parquet(
    table: TableStart, wanted: Sequence[str], progress: Progress
) -> Iterator[dict[str, Cells]]:
    with _parquet(table.path) as file:
        row, rows, size = 1, max(1, file.metadata.num_rows), table.path.stat().st_size
        for batch in _batches(table.path, file, wanted, CHUNK_ROWS):
            yield {name: _cells(table.path, name, batch[name], row) for name in wanted}
            row += batch.num_rows
            progress(size * batch.num_rows // rows)


def _batches(path: Path, file: Any, names: Sequence[str], rows: int) -> Iterator[Any]:
    from pyarrow import ArrowException  # noqa: PLC0415 - an optional part

    try:
        yield from file.iter_batches(batch_size=rows, columns=list(names))
    except (ArrowException, UnicodeDecodeError, OSError) as error:
        raise Misconfigured(f"{path}: damaged parquet: {error}") from None


def _cells(path: Path, name: str, column: Any, row: int) -> Cells:
    """A column of a batch: numbers, times as ISO 8601, anything else as text."""
    from pyarrow import types  # noqa: PLC0415 - an optional part

    kind = column.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        values = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
        return Cells(path, name, np.asarray(values, np.float64), row)
    words = ["" if one is None else _text(one) for one in column.to_pylist()]
    return Cells(path, name, words, row)


def _text(cell: object) -> str:
    return cell.isoformat() if hasattr(cell, "isoformat") else str(cell).strip()
