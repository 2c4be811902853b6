"""The main table: every method on every fleet, paired seeds."""

from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.variants import (
    AGGREGATE,
    EVERYBODY,
    PERSONAL,
    Part,
    Results,
    of_kind,
)
from lichen_lab.benchmarks.study.part import above, in_errors, paired

BEST_OTHER: Final = "above the best baseline, points"
IN_ERRORS: Final = "above the best baseline, standard errors"
WORST: Final = "above Local, the worst kind of device, points"
_LOCAL: Final = v.TITLES[v.LOCAL]


def of(kind: str) -> str:
    """The metric of a kind of device."""
    return f"above Local, points: {kind}"


def _rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for ours in (v.AVG, v.KD):
        others = [title for title in v.METHODS if title != ours]
        rows += results.margins(ours, others)
        given = [title for title in others if title != _LOCAL]
        rows += results.margins(ours, given, AGGREGATE.of, "as the fleet gives it: ")
        rows += _beside_all(results, ours)
    return rows


def _beside_all(results: Results, ours: str) -> list[ResultRow]:
    """Against the best baseline of each fleet, and against Local by kind."""
    rows = []
    for variant, runs in results.pairs():
        if variant.method != ours:
            continue
        fleet = variant.spec.fleet
        others = [runs_ for title in v.TITLES.values() if (runs_ := results.of(title, dataset=fleet))]
        if others:
            best = max(others, key=lambda runs_: fmean(one.mean for one in runs_.values()))
            ahead = paired(runs, best, PERSONAL.of)
            rows += results.row(variant, BEST_OTHER, ahead)
            rows += results.row(variant, IN_ERRORS, in_errors(ahead))
        local = results.of(_LOCAL, dataset=fleet)
        kinds = dict.fromkeys(next(iter(runs.values())).kinds.values()) if local else ()
        by_kind = {kind: paired(runs, local, of_kind(kind)) for kind in kinds}
        for kind, values in by_kind.items():
            rows += results.row(variant, of(kind), values)
        if by_kind:
            rows += results.row(variant, WORST, min(by_kind.values(), key=fmean))
    return rows


def _goal(metric: str, limit: float, fleet: str | None = None) -> Goal:
    return Goal(metric, limit, above=True, setting=EVERYBODY, method=v.AVG, dataset=fleet)


PART: Final = Part(
    name="table",
    place=1,
    title="every method on every fleet",
    variants=v.table(),
    rows=_rows,
    goals=(
        _goal(above(_LOCAL), 4.0, v.VEHICLE),
        _goal(above(v.TITLES[v.FEDAVG]), 0.0, v.VEHICLE),
        _goal(IN_ERRORS, 1.0, v.MERGE_FA),
        _goal(WORST, 0.0),
    ),
)
