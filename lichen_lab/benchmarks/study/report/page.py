"""Makes the report of a study: one self-contained HTML file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from lichen_lab.benchmarks.result import ResultRow, commit
from lichen_lab.benchmarks.study.part import PartResults
from lichen_lab.benchmarks.study.report.sheets import Sheet
from lichen_lab.benchmarks.tables import FigureTable, judged, template
from lichen_lab.simulation.reporting import style
from runtime.outputs import writing

Figures = tuple[tuple[str, Markup], ...]
"""Caption and drawing of each figure."""
_PACKAGE: Final = "lichen_lab.benchmarks.study.report"


@dataclass(frozen=True)
class ReportGroup:
    """Figures and tables shown together.

    Attributes:
        figures: side by side; a single one has the whole width.
        tables: one a condition.
        sheets: shown below the tables.
        name: heading; may be empty.
        wide: whether each figure has the whole width.
    """

    figures: Figures
    tables: tuple[FigureTable, ...]
    sheets: tuple[Sheet, ...] = ()
    name: str = ""
    wide: bool = False


@dataclass(frozen=True)
class ReportSection:
    """One part of a study.

    Attributes:
        name: the part's.
        title: the part's.
        groups: what is shown of it.
    """

    name: str
    title: str
    groups: tuple[ReportGroup, ...]


def drawings(made: Iterable[tuple[str, str]]) -> Figures:
    """Make figures from captions and SVG that matplotlib wrote."""
    return tuple((words, Markup(svg)) for words, svg in made)  # noqa: S704 - our own SVG, texts escaped


@dataclass(frozen=True)
class Page:
    """Texts and layout of one study's report.

    Attributes:
        study: name of the study.
        title: of the page.
        lead: what all runs share; ends with a full stop.
        footer: meaning of the figures.
        groups: makes the groups of a part from its runs and rows.
        widest_px: maximum width of a figure over the whole width.
    """

    study: str
    title: str
    lead: str
    footer: str
    groups: Callable[[PartResults[Any, Any], Sequence[ResultRow]], tuple[ReportGroup, ...]]
    widest_px: int = 760

    def html(self, results: Sequence[PartResults[Any, Any]], rows: Sequence[ResultRow]) -> str:
        """Render the page.

        Args:
            results: of each part.
            rows: all rows, for the goals.
        """
        goals = [goal for one in results for goal in one.part.goals]
        with style.context():
            sections = [
                ReportSection(
                    one.part.name,
                    one.part.title,
                    self.groups(one, one.rows()),
                )
                for one in results
            ]
        return template((files(_PACKAGE) / "page.html").read_text()).render(
            study=self.study,
            title=self.title,
            lead=self.lead,
            footer=self.footer,
            widest_px=self.widest_px,
            sections=sections,
            judged=judged(goals, rows),
            style=style.sheet(),
            commit=commit(),
            when=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
            seeds=max((row.n for row in rows), default=0),
            runs=len(set().union(*(one.keys() for one in results))),
            quick=any(one.quick for one in results),
        )

    def write(self, results: Sequence[PartResults[Any, Any]], rows: Sequence[ResultRow], path: Path) -> None:
        """Write the page.

        Raises:
            NotWritten: the file cannot be written.
        """
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.html(results, rows), encoding="utf-8")
