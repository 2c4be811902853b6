"""Stored results of benchmarks, and the tables of the docs that are made of them.

A file of ``results`` is a list of objects as ``lichen bench NAME --format json`` prints them: ``bench``,
``commit`` and ``rows``. A row that was copied from a published table may have ``se`` instead of ``sd``, or
neither where no spread was published. A page has ``<!-- table FILE/NAME -->`` before a table and
``<!-- end -->`` after it. The table ``[NAME]`` of ``tables/FILE.toml`` says what it shows::

    [demo-all]
    bench = "spar"
    where = { setting = "demo's people, all sensors" }
    rows = "method"
    columns = [{ head = "accuracy, %", metric = "accuracy on unseen people, %", digits = 1 }]

``where``, each line and each column select by the fields of a row; a list takes any of its values. A cell
is the one row that all three select; where line and column name the same field, the column decides, and
may refer to fields of the line, as in ``metric = "above {method}, points"``. ``rows`` and ``columns`` are
lists; ``{ setting = [..] }`` is a list of values that are their own headings; a field's name stands for
all of its values, in stored order. ``metrics`` makes one cell of several figures.

``digits`` (else four significant ones), ``sign``, ``scale`` and ``spread`` (``"sd"``, ``"se"``, ``"none"``)
say how a figure is written, in the whole table, a line or a column. ``head`` is the first column's heading.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lichen_lab.benchmarks.result import ResultRow, short
from protocol.errors import Misconfigured

RESULTS: Final = Path("benchmarks") / "results"
"""Where stored results are in the folder of the docs."""
_LAYOUTS: Final = Path("benchmarks") / "tables"
_FIELDS: Final = ("dataset", "method", "setting", "metric")
_TABLE: Final = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
Stored = Mapping[str, Any]
"""What a file has: a run, a row, a layout."""


def load(folder: Path) -> dict[Path, list[Stored]]:
    """Every file of results.

    Raises:
        Misconfigured: a file holds no results; the message names it.
    """
    return {path: read(path) for path in sorted(folder.glob("*.json"))}


def read(path: Path) -> list[Stored]:
    """A file of results, or what ``lichen bench NAME --out`` wrote.

    Raises:
        Misconfigured: it holds neither.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        runs: list[Stored] = content if isinstance(content, list) else [content]
        for run in runs:
            _ = run["bench"], run["commit"], [as_row(row) for row in run["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Misconfigured(f"{path}: no results as `lichen bench NAME --out` writes: {error!r}") from None
    return runs


def as_row(stored: Stored) -> ResultRow:
    """A stored row; its ``sd`` is NaN where no spread was stored.

    Raises:
        KeyError: a field is missing.
        TypeError: a figure is no number.
    """
    n = int(stored.get("n", 1))
    sd = stored["se"] * math.sqrt(n) if "se" in stored else stored.get("sd", math.nan)
    dataset, method, setting, metric = (str(stored[name]) for name in _FIELDS)
    return ResultRow(dataset, method, setting, metric, float(stored["mean"]), float(sd), n)


def store(new: Stored, folder: Path) -> Path:
    """Put a run among the stored ones: its figures take the place of the same ones of earlier runs.

    Returns:
        The file that has the results of that benchmark.
    """

    def key(row: Stored) -> tuple[str, ...]:
        return tuple(row[name] for name in _FIELDS)

    files = load(folder)
    path = next(
        (path for path, runs in files.items() if new["bench"] in {run["bench"] for run in runs}),
        folder / f"{new['bench']}.json",
    )
    again = set(map(key, new["rows"]))

    def left(run: Stored) -> Stored:
        return {**run, "rows": [row for row in run["rows"] if key(row) not in again]}

    runs = [left(run) if run["bench"] == new["bench"] else run for run in files.get(path, [])]
    path.write_text(as_text([*(run for run in runs if run["rows"]), new]), encoding="utf-8")
    return path


def as_text(runs: Iterable[Stored]) -> str:
    """A file of results, one row a line."""

    def one(run: Stored) -> str:
        head = json.dumps({name: run[name] for name in ("bench", "commit")}, ensure_ascii=False)
        rows = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in run["rows"])
        return f'{head[:-1]}, "rows": [\n{rows}\n]}}'

    return "[" + ",\n".join(map(one, runs)) + "]\n"


def rows_by_bench(docs: Path) -> dict[str, list[ResultRow]]:
    """All stored rows of each benchmark."""
    rows: dict[str, list[ResultRow]] = {}
    for runs in load(docs / RESULTS).values():
        for run in runs:
            rows.setdefault(run["bench"], []).extend(map(as_row, run["rows"]))
    return rows


def layouts(docs: Path) -> dict[str, Stored]:
    """What each table shows, by the name that a page gives it."""
    return {
        f"{path.stem}/{name}": layout
        for path in sorted((docs / _LAYOUTS).glob("*.toml"))
        for name, layout in tomllib.loads(path.read_text(encoding="utf-8")).items()
    }


def render(docs: Path) -> list[Path]:
    """Write the tables of every page below a folder from the results that are stored there.

    Returns:
        The pages that changed.

    Raises:
        Misconfigured: a table cannot be made; the message names it.
    """
    rows = rows_by_bench(docs)
    tables = {
        name: _Table(name, layout, rows.get(layout["bench"], ())) for name, layout in layouts(docs).items()
    }
    changed = []
    for page in sorted(docs.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        try:
            after = _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]].text()}{found[3]}", before)
        except KeyError as error:
            raise Misconfigured(f"{page}: {docs / _LAYOUTS} has no table {error}") from None
        if after != before:
            page.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed


@dataclass(frozen=True)
class _Table:
    name: str
    layout: Mapping[str, Any]
    rows: Sequence[ResultRow]

    def text(self) -> str:
        lines, columns = self._axis("rows"), self._axis("columns")
        if not (lines and columns):
            raise Misconfigured(f"table {self.name}: no stored result of {self.layout['bench']} fits it")
        cells = [[self._cell(line, column) for column in columns] for line in lines]
        filled = [*map(any, cells), *map(any, zip(*cells, strict=True))]
        if lost := [one["head"] for one, has in zip([*lines, *columns], filled, strict=True) if not has]:
            raise Misconfigured(f"table {self.name}: no stored figure of {self.layout['bench']} for {lost}")
        table = [
            [self.layout.get("head", ""), *(column["head"] for column in columns)],
            ["---"] * (1 + len(columns)),
            *([line["head"], *own] for line, own in zip(lines, cells, strict=True)),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in table)

    def _axis(self, name: str) -> list[Mapping[str, Any]]:
        """The lines or columns: heading, what each selects, and its style."""
        given = self.layout[name]
        if isinstance(given, list):
            return given
        if isinstance(given, str):
            where = self.layout.get("where", {})
            given = {given: dict.fromkeys(getattr(row, given) for row in self.rows if selects(where, row))}
        return [{"head": value, field: value} for field, values in given.items() for value in values]

    def _cell(self, line: Mapping[str, Any], column: Mapping[str, Any]) -> str:
        known = {**self.layout, **self.layout.get("where", {}), **line}
        own = {name: value.format(**known) for name, value in column.items() if isinstance(value, str)}
        wanted = {**known, **column, **own}
        several = [self._figure({**wanted, "metric": metric}) for metric in wanted.get("metrics", ())]
        figures = several or [self._figure(wanted)]
        return " / ".join(one or "-" for one in figures) if any(figures) else ""

    def _figure(self, wanted: Mapping[str, Any]) -> str:
        rows = [row for row in self.rows if selects(wanted, row)]
        if len(rows) > 1:
            raise Misconfigured(f"table {self.name}: {len(rows)} figures for a cell: {rows[:2]}")
        return figure(rows[0], wanted) if rows else ""


def selects(wanted: Mapping[str, Any], row: ResultRow) -> bool:
    """Whether the row has the wanted value of each field, or one of the wanted ones."""
    return all(getattr(row, name) in _listed(wanted[name]) for name in _FIELDS if name in wanted)


def _listed(wanted: Any) -> list[str]:
    return wanted if isinstance(wanted, list) else [wanted]


def figure(row: ResultRow, style: Mapping[str, Any]) -> str:
    """A mean and its spread as a table shows them, for example ``+1.2 ± 0.3``."""
    scale, digits = style.get("scale", 1), style.get("digits")
    spread = {"sd": row.sd, "se": row.se}.get(style.get("spread", "sd"), math.nan)

    def written(value: float, sign: str = "") -> str:
        return short(value) if digits is None else f"{value:{sign},.{digits}f}"

    mean = written(scale * row.mean, "+" if style.get("sign") else "")
    return mean if row.n == 1 or math.isnan(spread) else f"{mean} ± {written(scale * spread)}"
