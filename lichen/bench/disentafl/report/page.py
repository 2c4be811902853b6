"""Runs and rows in, one self-contained HTML file out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from markupsafe import Markup

from lichen.bench._tables import Table, is_margin, judged, tables, template
from lichen.bench.disentafl import cost
from lichen.bench.disentafl import names as n
from lichen.bench.disentafl.part import Results
from lichen.bench.disentafl.report import plots
from lichen.bench.disentafl.report.sheets import BY_KIND, BY_SIZE, Pivot, Sheet, kinds, pivot
from lichen.bench.result import Row, commit
from lichen.demo.report import style
from runtime.outputs import writing

Figures = list[tuple[str, Markup]]
_PACKAGE: Final = "lichen.bench.disentafl.report"
_PIVOTS: Final[Mapping[str, Pivot]] = {"bytes": BY_KIND, "cost": BY_SIZE}
"""Parts whose many conditions are read down one table."""


@dataclass(frozen=True)
class Fleet:
    """What a part says of one fleet."""

    name: str
    figures: Figures
    tables: tuple[Table, ...]
    sheets: tuple[Sheet, ...]


@dataclass(frozen=True)
class Section:
    """One part of the study."""

    name: str
    title: str
    fleets: tuple[Fleet, ...]


def section(results: Results, rows: Sequence[Row]) -> Section:
    """A part's figures and tables, fleet by fleet.

    Args:
        results: the part's runs.
        rows: the part's, those that need no run among them.
    """
    part = results.part
    fleets = dict.fromkeys(row.dataset for row in rows)
    return Section(part.name, part.title, tuple(_fleet(results, rows, fleet) for fleet in fleets))


def _fleet(results: Results, rows: Sequence[Row], name: str) -> Fleet:
    own = [row for row in rows if row.dataset == name]
    if results.part.name in _PIVOTS:
        return Fleet(name, _figures(results, own, name), (), (pivot(own, _PIVOTS[results.part.name]),))
    by_kind = kinds(results, name) if results.part.name == "table" else None
    # a kind's difference from Local stands in the sheet of kinds
    of_a_kind = f"above {n.TITLES[n.LOCAL]}, points: "
    shown = own if by_kind is None else [row for row in own if not row.metric.startswith(of_a_kind)]
    sheets = () if by_kind is None else (by_kind,)
    return Fleet(name, _figures(results, own, name), tables(shown), sheets)


def _figures(results: Results, rows: Sequence[Row], fleet: str) -> Figures:
    """What suits the rows: growth of cost, traffic by kind, curves and margins."""
    part = f"{results.part.name}-{fleet}"
    drawn: Iterable[tuple[str, str]]
    if fleet == cost.DATASET:
        drawn = [
            (metric, plots.growth(rows, metric, f"{part}{place}"))
            for place, metric in enumerate((cost.DOWN, cost.HOLDS))
        ]
    elif results.part.name == "bytes":
        drawn = [("bytes of a device and round, by kind", plots.traffic(results, fleet, part))]
    else:
        drawn = [*_curves(results, fleet, part), *_margins(rows, part)]
    return [(words, Markup(svg)) for words, svg in drawn]  # noqa: S704 - matplotlib's own SVG, texts escaped


def _curves(results: Results, fleet: str, part: str) -> Iterable[tuple[str, str]]:
    unders = dict.fromkeys(v.under for v, _ in results.pairs() if v.one.fleet == fleet)
    for place, under in enumerate(unders):
        yield under, plots.curves(results, fleet, under, f"{part}c{place}")


def _margins(rows: Sequence[Row], part: str) -> Iterable[tuple[str, str]]:
    found = [row for row in rows if is_margin(row)]
    for place, method in enumerate(dict.fromkeys(row.method for row in found)):
        own = [row for row in found if row.method == method]
        yield f"{method}: paired differences", plots.margins(own, f"{part}m{place}")


def html(results: Sequence[Results], rows: Sequence[Row], computed: Sequence[Row] = ()) -> str:
    """The page.

    Args:
        results: by part.
        rows: all, for the goals.
        computed: those of them that need no run; they belong to the part that can compute.
    """
    goals = [goal for one in results for goal in one.part.goals]
    with style.context():
        sections = [section(one, one.part.rows(one) or computed) for one in results]
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
    made = {row for one in results for row in one.part.rows(one)}
    computed = [row for row in rows if row not in made]
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html(results, rows, computed), encoding="utf-8")
