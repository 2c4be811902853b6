"""Tables of a report: methods as rows, figures as columns, paired differences beside them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from lichen_lab.benchmarks.result import Goal, ResultRow, short

_CLEAR: Final = 2.0
"""A margin is coloured from so many standard errors on."""
_LARGE: Final = 1000


@dataclass(frozen=True)
class JudgedGoal:
    """A goal and a row that it applies to."""

    goal: Goal
    row: ResultRow

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.goal.met(self.row)


@dataclass(frozen=True)
class TableLine:
    """One method under one condition.

    Attributes:
        method: as rows name it.
        cells: its row of each metric of the table, None where it has none.
        margins: paired differences that stand in this line, with the words before each.
    """

    method: str
    cells: tuple[ResultRow | None, ...]
    margins: tuple[tuple[str, ResultRow], ...]


@dataclass(frozen=True)
class FigureTable:
    """One condition: methods as rows, figures as columns.

    Attributes:
        setting: the condition.
        metrics: columns.
        margin: title of the column of paired differences; empty without one.
        lines: see :class:`TableLine`.
    """

    setting: str
    metrics: tuple[str, ...]
    margin: str
    lines: tuple[TableLine, ...]


_MARGIN: Final = re.compile(r"(?:(?P<of>.*): )?above (?P<theirs>.*), points")


def is_margin(row: ResultRow) -> bool:
    """Whether the row is a paired difference."""
    return _MARGIN.fullmatch(row.metric) is not None


def tables(rows: Sequence[ResultRow]) -> tuple[FigureTable, ...]:
    """A table for each condition, with each paired difference in the line of its method."""
    return tuple(
        _table(setting, [row for row in rows if row.setting == setting])
        for setting in dict.fromkeys(row.setting for row in rows)
    )


def _table(setting: str, rows: Sequence[ResultRow]) -> FigureTable:
    absolute = {(row.method, row.metric): row for row in rows if not is_margin(row)}
    metrics = tuple(dict.fromkeys(metric for _, metric in absolute))
    margins = [(row, found) for row in rows if (found := _MARGIN.fullmatch(row.metric))]
    ours = tuple(dict.fromkeys(row.method for row, _ in margins))
    theirs = tuple(dict.fromkeys(found["theirs"] for _, found in margins))
    # All against one: the differences stand in the lines of the many.
    many = len(theirs) == 1 and len(ours) > 1
    header = f"minus {theirs[0]}" if many else f"{ours[0]} minus this" if len(ours) == 1 else "difference"
    shown: dict[str, list[tuple[str, ResultRow]]] = {}
    for row, found in margins:
        words = found["of"] or ("" if many or len(ours) == 1 else f"{row.method} minus this")
        shown.setdefault(row.method if many else found["theirs"], []).append((words, row))
    lines = tuple(
        TableLine(
            method, tuple(absolute.get((method, metric)) for metric in metrics), tuple(shown.get(method, ()))
        )
        for method in dict.fromkeys(method for method, _ in absolute)
    )
    return FigureTable(setting, metrics, header if margins else "", lines)


def judged(goals: Sequence[Goal], rows: Sequence[ResultRow]) -> list[JudgedGoal]:
    """Every goal with every row that it applies to."""
    return [JudgedGoal(goal, row) for goal in goals for row in rows if goal.concerns(row)]


def template(page: str) -> Template:
    """A page's template, with the macros ``goals`` and ``tables`` before it."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(short=short, figure=figure)
    environment.globals.update(
        Markup=Markup, clear=lambda row: row.n > 1 and abs(row.mean) >= _CLEAR * row.se
    )
    macros = (files("lichen_lab.benchmarks") / "tables.html").read_text()
    return environment.from_string(macros + page)


def figure(value: float) -> str:
    """Two digits after the point, or whole thousands."""
    return short(value) if value == round(value) or abs(value) >= _LARGE else f"{value:.2f}"
