"""Runs and rows in, one self-contained HTML file out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from markupsafe import Markup

from lichen.bench._tables import Table, judged, tables, template
from lichen.bench.result import Row, commit
from lichen.bench.tactfl.part import Results
from lichen.bench.tactfl.report import plots
from lichen.demo.report import style
from runtime.outputs import writing

_PACKAGE: Final = "lichen.bench.tactfl.report"
_BY_ROUND: Final = frozenset({"table", "encoders", "aggregators"})
"""Parts whose versions are shown as they come."""
_WEIGHTS: Final = frozenset({"broken"})
"""Parts in which devices differ in what they weigh."""
_SEVERAL: Final = 2


@dataclass(frozen=True)
class Section:
    """One part of the study.

    Attributes:
        name: the part's.
        title: the part's.
        figures: words and drawing of each.
        tables: one a condition.
    """

    name: str
    title: str
    figures: tuple[tuple[str, Markup], ...]
    tables: tuple[Table, ...]


def section(results: Results) -> Section:
    """A part's figures and tables."""
    rows = results.part.rows(results)
    figures = tuple(
        (words, Markup(svg))  # noqa: S704 - matplotlib's own SVG, texts escaped
        for words, svg in _figures(results, rows)
    )
    return Section(results.part.name, results.part.title, figures, tables(rows))


def _figures(results: Results, rows: Sequence[Row]) -> Iterable[tuple[str, str]]:
    """What suits the part: conditions side by side, versions by round, weights by device."""
    name = results.part.name
    if len({row.setting for row in rows}) >= _SEVERAL:
        yield "F1 by condition", plots.conditions(rows, f"{name}-conditions")
    places = dict.fromkeys((variant.dataset, variant.under) for variant, _ in results.pairs())
    for number, (dataset, under) in enumerate(places):
        if name in _BY_ROUND:
            yield f"{under}: by round", plots.curves(results, dataset, under, f"{name}-r{number}")
        if name in _WEIGHTS:
            yield f"{under}: weights", plots.shares(results, under, f"{name}-w{number}")


def html(results: Sequence[Results], rows: Sequence[Row]) -> str:
    """The page.

    Args:
        results: by part.
        rows: all, for the goals.
    """
    goals = [goal for one in results for goal in one.part.goals]
    with style.context():
        sections = [section(one) for one in results]
    return template(_PACKAGE).render(
        sections=sections,
        judged=judged(goals, rows),
        style=style.sheet(),
        commit=commit(),
        when=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seeds=max((row.n for row in rows), default=0),
        runs=len(set().union(*(one.keys() for one in results))),
        quick=any(one.quick for one in results),
    )


def write(results: Sequence[Results], rows: Sequence[Row], path: Path) -> None:
    """Write the page.

    Raises:
        NotWritten: it cannot be.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html(results, rows), encoding="utf-8")
