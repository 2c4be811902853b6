"""Runs and rows in, one self-contained HTML file out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lichen.bench.qqr.part import Results
from lichen.bench.qqr.report import plots
from lichen.bench.result import Goal, Row, commit, short
from lichen.demo.report import style
from runtime.outputs import writing

_CLEAR: Final = 2.0
"""A margin is coloured from so many standard errors on."""
_LARGE: Final = 1000


@dataclass(frozen=True)
class Judged:
    """A goal and the row it speaks about."""

    goal: Goal
    row: Row

    @property
    def met(self) -> bool:
        """Whether it holds."""
        return self.goal.met(self.row)


@dataclass(frozen=True)
class Line:
    """One method under one condition.

    Attributes:
        method: as rows name it.
        cells: its row of each metric of the table, None where it has none.
        margins: paired differences that stand in this line, with the words before each.
    """

    method: str
    cells: tuple[Row | None, ...]
    margins: tuple[tuple[str, Row], ...]


@dataclass(frozen=True)
class Table:
    """One condition: methods down, figures across.

    Attributes:
        setting: the condition.
        metrics: columns.
        margin: what the column of paired differences is called; empty without one.
        lines: see :class:`Line`.
    """

    setting: str
    metrics: tuple[str, ...]
    margin: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Section:
    """One part of the study."""

    name: str
    title: str
    figures: tuple[tuple[str, Markup], ...]
    tables: tuple[Table, ...]


_MARGIN: Final = re.compile(r"(?:(?P<of>.*): )?above (?P<theirs>.*), points")


def is_margin(row: Row) -> bool:
    """Whether the row is a paired difference."""
    return _MARGIN.fullmatch(row.metric) is not None


def tables(rows: Sequence[Row]) -> tuple[Table, ...]:
    """A table for each condition, paired differences in the lines of those that they speak about."""
    return tuple(
        _table(setting, [row for row in rows if row.setting == setting])
        for setting in dict.fromkeys(row.setting for row in rows)
    )


def _table(setting: str, rows: Sequence[Row]) -> Table:
    absolute = {(row.method, row.metric): row for row in rows if not is_margin(row)}
    metrics = tuple(dict.fromkeys(metric for _, metric in absolute))
    margins = [(row, found) for row in rows if (found := _MARGIN.fullmatch(row.metric))]
    ours = tuple(dict.fromkeys(row.method for row, _ in margins))
    theirs = tuple(dict.fromkeys(found["theirs"] for _, found in margins))
    # All against one: the differences stand in the lines of the many.
    many = len(theirs) == 1 and len(ours) > 1
    header = f"minus {theirs[0]}" if many else f"{ours[0]} minus this" if len(ours) == 1 else "difference"
    shown: dict[str, list[tuple[str, Row]]] = {}
    for row, found in margins:
        words = found["of"] or ("" if many or len(ours) == 1 else f"{row.method} minus this")
        shown.setdefault(row.method if many else found["theirs"], []).append((words, row))
    lines = tuple(
        Line(
            method, tuple(absolute.get((method, metric)) for metric in metrics), tuple(shown.get(method, ()))
        )
        for method in dict.fromkeys(method for method, _ in absolute)
    )
    return Table(setting, metrics, header if margins else "", lines)


def section(results: Results) -> Section:
    """A part's figures and tables."""
    part, rows = results.part, results.part.rows(results)
    absolute = [row for row in rows if not is_margin(row)]
    return Section(part.name, part.title, tuple(_figures(results, absolute)), tables(rows))


def _figures(results: Results, rows: Sequence[Row]) -> list[tuple[str, Markup]]:
    name = results.part.name
    if any(row.seconds for row in rows) and name != "bytes":
        unders = dict.fromkeys(v.under for v in results.part.variants if results.of(v.method, v.under))
        drawn = [(u, plots.curves(results, u, f"{name}{place}")) for place, u in enumerate(unders)]
    elif name == "bytes":
        drawn = [("accuracy (mean over seeds, smoothed) over bytes", plots.against_bytes(results, name))]
    else:
        metrics = dict.fromkeys(row.metric for row in rows)
        drawn = [
            (metric, plots.bars([row for row in rows if row.metric == metric], f"{name}{place}"))
            for place, metric in enumerate(metrics)
        ]
    return [(words, Markup(svg)) for words, svg in drawn]  # noqa: S704 - matplotlib's own SVG, texts escaped


def html(results: Sequence[Results], rows: Sequence[Row]) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(short=short, figure=figure)
    environment.globals.update(
        Markup=Markup, clear=lambda row: row.n > 1 and abs(row.mean) >= _CLEAR * row.se
    )
    template = environment.from_string((files("lichen.bench.qqr.report") / "page.html").read_text())
    goals = [goal for one in results for goal in one.part.goals]
    judged = [Judged(goal, row) for goal in goals for row in rows if goal.concerns(row)]
    with style.context():
        sections = [section(one) for one in results]
    return template.render(
        sections=sections,
        judged=judged,
        style=style.sheet(),
        commit=commit(),
        when=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seeds=max((row.n for row in rows), default=0),
        runs=len(_keys(results)),
        quick=any(one.quick for one in results),
    )


def figure(value: float) -> str:
    """Two digits after the point, or whole thousands."""
    return short(value) if value == round(value) or abs(value) >= _LARGE else f"{value:.2f}"


def _keys(results: Sequence[Results]) -> set[str]:
    """The runs themselves: several tables may show one."""
    return {
        variant.setting.at(seed).key()
        for one in results
        for variant in one.part.variants
        for seed in one.of(variant.method, variant.under)
    }


def write(results: Sequence[Results], rows: Sequence[Row], path: Path) -> None:
    """Write the page.

    Raises:
        NotWritten: it cannot be.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html(results, rows), encoding="utf-8")
