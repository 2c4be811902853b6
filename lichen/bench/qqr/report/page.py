"""Runs and rows in, one self-contained HTML file out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from lichen.bench._tables import Table, is_margin, judged, tables, template
from lichen.bench.qqr.part import Results
from lichen.bench.qqr.report import plots
from lichen.bench.result import Row, commit
from lichen.demo.report import style
from runtime.outputs import writing


@dataclass(frozen=True)
class Section:
    """One part of the study."""

    name: str
    title: str
    figures: tuple[tuple[str, Markup], ...]
    tables: tuple[Table, ...]


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
    goals = [goal for one in results for goal in one.part.goals]
    with style.context():
        sections = [section(one) for one in results]
    return template("lichen.bench.qqr.report").render(
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
