"""Tables with several recordings, and classes by name: the operator's labels (``task.labelled``). NumPy.

Shapes: n rows.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.data.streams import tables
from models.data.streams.recording import Recording, of_columns, text_columns
from models.data.streams.tables import Table
from protocol.errors import Misconfigured
from protocol.tasks.labelling import Labelled
from protocol.tasks.task import LABEL, Task

_SHOWN: Final = 12


def by_recording(task: Task, named: Labelled, path: Path) -> dict[str, Recording]:
    """The recordings of a csv or parquet file by name, in the order of first mention.

    Args:
        task: its labels.
        named: the columns; without a recording column there is one recording, without a name.
        path: the file.

    Raises:
        Misconfigured: a column is missing or holds an invalid cell, a class is not in the task, or time goes
            back within a recording; the message names file, line and column.
        OSError: the file cannot be read.
    """
    texts = text_columns(tables.header(path))
    # an operator's notes in further columns are no samples
    words = {column: column for column in texts} | _words_of(named)
    table = tables.read(path, words, lambda name: name == "t" or "." in name)
    columns = dict(table.numbers)
    columns[LABEL] = _classes(task, named.label_column, table)
    found = {}
    for name, rows in _groups(named.recording_column, table).items():
        own = {column: values[rows] for column, values in columns.items()}
        if "t" in own:
            _refuse_disorder(table, own["t"], rows, named.recording_column)
        of_rows = {column: [table.words[column][row] for row in rows.tolist()] for column in texts}
        found[name] = of_columns(path, own, texts=of_rows)
    return found


def _words_of(named: Labelled) -> dict[str, str]:
    """The text columns, with their keys."""
    asked = {named.label_column: "label_column"}
    if named.recording_column in asked:
        raise Misconfigured(f"recording_column: {named.recording_column!r} is the column of the labels")
    return asked if named.recording_column is None else {**asked, named.recording_column: "recording_column"}


def _classes(task: Task, column: str, table: Table) -> NDArray[np.float64]:
    """(n,) class index of each row, NaN for an empty cell.

    If a label of the task reads as a number, cells are names only: ``3`` could be either.
    """
    known: dict[str, float] = {"": np.nan}
    names = [label.strip() for label in task.labels]
    known |= {_whole(name): float(i) for i, name in enumerate(names)}
    known |= {name: float(i) for i, name in enumerate(names)}
    if not any(_whole(name).lstrip("-").isdigit() for name in names):
        known |= {"-1": np.nan} | {str(i): float(i) for i in range(len(task.labels))}
    cells = [cell if cell in known else _whole(cell) for cell in table.words[column]]
    for row, cell in enumerate(cells):
        if cell not in known:
            near = difflib.get_close_matches(cell, task.labels, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            labels = ", ".join(task.labels[:_SHOWN])
            raise Misconfigured(
                f"{table.path}: {table.place(row)}, column {column!r}: {cell!r} is no label of task "
                f"{task.name!r} (labels: {labels}){hint}"
            )
    return np.array([known[cell] for cell in cells], np.float64)


def _whole(cell: str) -> str:
    """A whole number without its fraction, as tables with empty cells write it: ``3.0`` is ``3``."""
    head, dot, fraction = cell.partition(".")
    return head if dot and not fraction.strip("0") else cell


def _groups(column: str | None, table: Table) -> Mapping[str, NDArray[np.int64]]:
    """Rows of each recording, in the order of first mention."""
    if column is None:
        count = len(next(iter(table.words.values())))
        return {"": np.arange(count)}
    rows: dict[str, list[int]] = {}
    for row, cell in enumerate(table.words[column]):
        if not cell:
            raise Misconfigured(
                f"{table.path}: {table.place(row)}, column {column!r} is empty: which recording is it of?"
            )
        rows.setdefault(cell, []).append(row)
    return {name: np.array(found, np.int64) for name, found in rows.items()}


def _refuse_disorder(
    table: Table, t: NDArray[np.float64], rows: NDArray[np.int64], column: str | None
) -> None:
    """Refuse rows out of order: sorting would mix recordings that each begin at 0."""
    bad = np.flatnonzero(~np.isfinite(t))
    if len(bad):
        raise Misconfigured(f"{table.path}: {table.place(rows[bad[0]])}, column 't': no time")
    back = np.flatnonzero(np.diff(t) < 0)
    if not len(back):
        return
    at, row = back[0], rows[back[0] + 1]
    told = f"{table.path}: {table.place(row)}, column 't': time goes back from {t[at]:g} to {t[at + 1]:g} s"
    if column is None:
        raise Misconfigured(
            f"{told}; where the file holds several recordings, name the column that tells them apart: "
            "recording_column"
        )
    raise Misconfigured(f"{told} within one recording ({column} {table.words[column][row]!r})")
