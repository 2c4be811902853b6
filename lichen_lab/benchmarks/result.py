"""Rows and goals of a benchmark, printed as a table for people or as JSON for programs."""

import json
import math
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

Say = Callable[[str], None]
"""Takes one line about what is being measured now."""


@dataclass(frozen=True)
class ResultRow:
    """One measured figure.

    Attributes:
        dataset: what it was measured on.
        method: the federated method, codec or role that was measured.
        setting: everything else that the figure depends on.
        metric: the figure's name, with its unit.
        mean: over ``n`` repetitions.
        sd: sample standard deviation over the repetitions; 0 where n is 1.
        n: repetitions.
        seconds: wall time it took to measure.
    """

    dataset: str
    method: str
    setting: str
    metric: str
    mean: float
    sd: float = 0.0
    n: int = 1
    seconds: float = 0.0

    @property
    def se(self) -> float:
        """Standard error of the mean; 0 where n is 1."""
        return self.sd / math.sqrt(self.n)


@dataclass(frozen=True)
class Goal:
    """A target for the mean of every row with that metric (and setting, method, data set if given)."""

    metric: str
    limit: float
    above: bool = False
    setting: str | None = None
    method: str | None = None
    dataset: str | None = None

    def concerns(self, row: ResultRow) -> bool:
        """Whether this goal applies to that row."""
        named = ((self.setting, row.setting), (self.method, row.method), (self.dataset, row.dataset))
        return self.metric == row.metric and all(wanted in (None, given) for wanted, given in named)

    def met(self, row: ResultRow) -> bool:
        """Whether the row's mean is on the right side of the limit."""
        return row.mean > self.limit if self.above else row.mean < self.limit

    def words(self, row: ResultRow) -> str:
        """``< 0.3 met``, or ``< 0.3 MISSED``."""
        return f"{'>' if self.above else '<'} {self.limit:g} {'met' if self.met(row) else 'MISSED'}"


@dataclass(frozen=True)
class Bench:
    """One benchmark.

    Attributes:
        name: the word after ``lichen bench``; the module's name.
        run: measures; ``quick`` is one repetition and under a minute.
        goals: targets of the figures.
        promises: targets that must be met: a miss ends the command with 70.
    """

    name: str
    run: Callable[[bool, Say], list[ResultRow]]
    goals: tuple[Goal, ...] = ()
    promises: tuple[Goal, ...] = ()

    def sound(self, rows: Iterable[ResultRow]) -> bool:
        """Whether the figures keep every promise."""
        return all(one.met(row) for row in rows for one in self.promises if one.concerns(row))


def row(
    dataset: str, method: str, setting: str, metric: str, values: Sequence[float], *, seconds: float = 0.0
) -> ResultRow:
    """Make a row from repeated measurements.

    Raises:
        ValueError: there is none, or one is not finite.
    """
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"{metric} of {method} ({setting}): no finite measurement in {list(values)}")
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return ResultRow(dataset, method, setting, metric, statistics.fmean(values), spread, len(values), seconds)


def figure_rows(
    dataset: str,
    method: str,
    setting: str,
    figures: Mapping[str, float | Sequence[float]],
    *,
    seconds: float = 0.0,
) -> list[ResultRow]:
    """A row for each figure: metric -> the measurement, or one for each repetition; see :func:`row`."""
    values = {
        metric: [given] if isinstance(given, int | float) else given for metric, given in figures.items()
    }
    return [row(dataset, method, setting, metric, given, seconds=seconds) for metric, given in values.items()]


def commit() -> str:
    """The checkout's git commit, with ``+`` if files differ; ``unknown`` outside a checkout."""
    here = Path(__file__).resolve().parents[2]
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(where: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(where), *words], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def as_json(bench: Bench, rows: Iterable[ResultRow]) -> str:
    """One object: ``{"bench", "commit", "rows": [...]}``, with no number that JSON cannot hold."""
    return json.dumps(
        {"bench": bench.name, "commit": commit(), "rows": [asdict(one) for one in rows]}, allow_nan=False
    )


def as_table(bench: Bench, rows: Iterable[ResultRow], about: str = "") -> Table:
    """The rows as a table, titled with the bench's name and ``about``; the goals beside their figures."""
    table = Table(title=f"{bench.name}: {about}", title_justify="left")
    for name in ("dataset", "method", "setting", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("mean", "sd", "se", "n", "goal"):
        table.add_column(name, justify="right", overflow="fold")
    for one in rows:
        goals = (*bench.goals, *bench.promises)
        goal = "; ".join(goal.words(one) for goal in goals if goal.concerns(one))
        spread = (short(one.sd), short(one.se)) if one.n > 1 else ("", "")
        words = (one.dataset, one.method, one.setting, one.metric)
        table.add_row(*map(escape, words), short(one.mean), *spread, str(one.n), goal)
    return table


def short(value: float) -> str:
    """Four significant digits; whole numbers with thousands separated."""
    if value == round(value) and abs(value) < 1e15:  # noqa: PLR2004 - beyond that a float has no units digit
        return f"{value:,.0f}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # noqa: PLR2004 - four digits
