"""Equal treatment: what DisentAFL's devices keep of their own, the baselines' keep too, at their usual rates.

A baseline's title says what its devices keep. On each fleet the rule is the one that DisentAFL-Avg has there;
where DisentAFL also keeps a share of all its weights, there is a line with it and one without for both
sides. Beside these, all methods with a last layer that is shared.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome
from lichen_lab.benchmarks.studies.disentafl.variants import (
    AGGREGATE,
    EVERYBODY,
    NEWCOMER,
    PERSONAL,
    Line,
    Part,
    Results,
)
from lichen_lab.benchmarks.study.part import Figure, in_errors, paired

OWN: Final = "own last layer"
BLENDED: Final = "blended last layer"
SHARED: Final = "shared last layer"
KEEPING: Final = "own last layer, 0.4 of its weights kept"
RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    OWN: {"last_layer": "private", "own_share": 0.0},
    BLENDED: {"last_layer": "interpolated", "own_share": 0.0},
    SHARED: {"last_layer": "shared", "own_share": 0.0},
    KEEPING: {"last_layer": "private", "own_share": 0.4},
}
"""What devices keep -> the options, the same for DisentAFL and for the baselines."""
ON_FLEET: Final[Mapping[str, tuple[str, ...]]] = {
    v.MERGE_FA: (OWN, SHARED),
    v.UCI_HAR: (KEEPING, OWN, SHARED),
    v.VEHICLE: (BLENDED, SHARED),
}
"""Fleet -> its rules, the one of DisentAFL-Avg in the main table first."""
_LOCAL: Final = v.TITLES[v.LOCAL]
BASELINES: Final = tuple(title for title in v.TITLES.values() if title != _LOCAL)
BEST_OTHER: Final = "above the best baseline under the same rule, points"
IN_ERRORS: Final = "above the best baseline under the same rule, standard errors"

_FIGURES: Final = (
    (PERSONAL, ""),
    (AGGREGATE, "as the fleet gives it: "),
    (NEWCOMER, "as a newcomer gets it: "),
)


def titled(title: str, rule: str) -> str:
    """A method's name under a rule."""
    return f"{title}, {rule}"


def line(fleet: str, title: str, rule: str) -> Line:
    """A method under a rule; what is a method's usual rule makes the run of the main table."""
    options = dict(RULES[rule])
    usual = {"last_layer": "shared", "own_share": 0.0, **v.options_of(fleet, title)}
    given = {name: value for name, value in options.items() if value != usual[name]}
    return v.line(fleet, title, named=titled(title, rule), **given)


def _variants() -> tuple[Line, ...]:
    shared = tuple(
        line(fleet, title, rule)
        for fleet, rules in ON_FLEET.items()
        for rule in rules
        for title in (v.AVG, *BASELINES)
    )
    return (*shared, *(v.line(fleet, _LOCAL) for fleet in ON_FLEET))


def beside(results: Results, rule: str) -> list[ResultRow]:
    """DisentAFL-Avg under a rule, minus Local and minus each baseline under the same rule."""
    ours, others = titled(v.AVG, rule), [titled(title, rule) for title in BASELINES]
    rows = results.margins(ours, (_LOCAL,))
    for figure, what in _FIGURES:
        rows += results.margins(ours, others, figure.of, what)
        rows += _beside_the_best(results, ours, others, figure, what)
    return rows


def _rows(results: Results) -> list[ResultRow]:
    scores = [row for row in results.scores() if row.method != _LOCAL]  # Local's are in the main table
    return [*scores, *(row for rule in RULES for row in beside(results, rule))]


def _beside_the_best(
    results: Results, ours: str, others: list[str], figure: Figure[DisentAflOutcome], what: str
) -> list[ResultRow]:
    """Against the baseline that is best by the figure's mean over the seeds."""
    rows = []
    for variant, runs in results.pairs():
        if variant.method != ours:
            continue
        theirs = [found for title in others if (found := results.of(title, EVERYBODY, variant.dataset))]
        made = [(values, one) for one in theirs if (values := _values(one, figure))]
        if not made:
            continue
        best = max(made, key=lambda pair: fmean(pair[0]))[1]
        ahead = paired(runs, best, figure.of)
        rows += results.row(variant, f"{what}{BEST_OTHER}", ahead)
        rows += results.row(variant, f"{what}{IN_ERRORS}", in_errors(ahead))
    return rows


def _values(runs: Mapping[int, DisentAflOutcome], figure: Figure[DisentAflOutcome]) -> list[float]:
    return [value for one in runs.values() if (value := figure.of(one)) is not None]


PART: Final = Part(
    name="equal",
    place=1,
    title="every method with the same parts of its own",
    variants=_variants(),
    rows=_rows,
    goals=tuple(
        Goal(IN_ERRORS, -1.0, above=True, setting=EVERYBODY, method=titled(v.AVG, rules[0]), dataset=fleet)
        for fleet, rules in ON_FLEET.items()
    ),
)
BOTH: Final = f"{v.AVG}, own last layer, and one of the fleet's"
"""Not in the paper: devices' own models are those of :data:`OWN`; a newcomer gets the fleet's last layer."""


_FIVE: Final = f"{EVERYBODY}, five seeds"


def _beyond_rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for figure, what in _FIGURES:
        rows += results.margins(BOTH, (titled(v.AVG, OWN),), figure.of, what)
    return rows


BEYOND: Final = Part(
    name="beyond",
    place=20,
    title="one step beyond the paper: a last layer of the fleet's beside own ones, for newcomers; five seeds",
    variants=(
        v.line(v.MERGE_FA, v.AVG, _FIVE, named=titled(v.AVG, OWN)),
        v.line(v.MERGE_FA, v.AVG, _FIVE, named=BOTH, last_layer="both"),
    ),
    rows=_beyond_rows,
    by_default=False,
    seeds=(0, 1, 2, 3, 4),
)
