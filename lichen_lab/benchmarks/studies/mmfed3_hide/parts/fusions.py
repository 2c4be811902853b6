"""Every fusion; gated from zero is the one that begins as the structure alone."""

from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.mmfed3_hide import names as n
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Line, Part, Results
from lichen_lab.benchmarks.study.part import usual

UNDER: Final = "r = 50 %"
ABOVE: Final = {theirs: f"best fusion above {theirs}, on the worst seed" for theirs in (n.FEDE, n.S_IND)}
_LINES: Final = (n.MMFEDE, n.OURS)


def _variants() -> tuple[Line, ...]:
    made = [
        v.usual(title, f"{UNDER}, fusion: {words}", fusion=fusion)
        for fusion, words in v.FUSIONS.items()
        for title in _LINES
    ]
    return (*made, *(v.usual(title, UNDER) for title in ABOVE))


def _rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    lines = [(variant, runs) for variant, runs in results.pairs() if variant.method in _LINES]
    if not lines or results.quick:
        return rows
    best, runs = max(lines, key=lambda one: sum(o.best.test["mrr"] for o in one[1].values()))
    for theirs, metric in ABOVE.items():
        others = results.of(theirs, UNDER)
        ahead = [runs[s].best.test["mrr"] - others[s].best.test["mrr"] for s in runs.keys() & others.keys()]
        rows += results.row(best, metric, [100 * min(ahead)] if ahead else [])
    return rows


PART: Final = Part(
    name="fusions",
    place=3,
    title="fusions of structure and features",
    variants=_variants(),
    rows=_rows,
    goals=tuple(Goal(metric, 0.0, above=True, dataset=BUSY) for metric in ABOVE.values()),
)
