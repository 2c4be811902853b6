"""The method's options, one at a time: shares of features, fusions, scores of triples."""

from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Part, Results
from lichen_lab.benchmarks.study.part import lines, usual

UNDER: Final = "r = 50 %"
RATE_VALUES: Final = (0.1, 0.3, 0.5, 0.7, 1.0)
RATES: Final = Part(
    name="rates",
    place=2,
    title="features that clients have, from a tenth to all",
    variants=lines(
        v.line,
        (v.OURS, v.MMFEDE, v.MM_IND, v.MM_CEN, v.FEDE, v.S_IND),
        {f"r = {100 * rate:.0f} %": {"rate": rate} for rate in RATE_VALUES},
    ),
    versus=((v.OURS, v.MMFEDE), (v.OURS, v.FEDE)),
)
SCORES: Final = Part(
    name="scores",
    place=4,
    title="RotatE, TransE and ComplEx",
    variants=lines(
        v.line,
        (v.S_IND, v.FEDE, v.OURS),
        {words: {"setting": {"score": score}} for score, words in v.SCORES.items()},
    ),
)
ABOVE: Final = {theirs: f"best fusion above {theirs}, on the worst seed" for theirs in (v.FEDE, v.S_IND)}
_FUSED: Final = (v.MMFEDE, v.OURS)


def _fusion_rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    fused = [(line, runs) for line, runs in results.pairs() if line.method in _FUSED]
    if not fused or results.quick:
        return rows
    best, runs = max(fused, key=lambda pair: sum(o.best.test["mrr"] for o in pair[1].values()))
    for theirs, metric in ABOVE.items():
        others = results.of(theirs, UNDER)
        ahead = [runs[s].best.test["mrr"] - others[s].best.test["mrr"] for s in runs.keys() & others.keys()]
        rows += results.row(best, metric, [100 * min(ahead)] if ahead else [])
    return rows


FUSIONS: Final = Part(
    name="fusions",
    place=3,
    title="fusions of structure and features",
    variants=(
        *lines(
            v.line,
            _FUSED,
            {f"{UNDER}, fusion: {words}": {"fusion": fusion} for fusion, words in v.FUSIONS.items()},
        ),
        *lines(v.line, ABOVE, {UNDER: {}}),
    ),
    rows=_fusion_rows,
    goals=tuple(Goal(metric, 0.0, above=True, dataset=BUSY) for metric in ABOVE.values()),
)
""""Gated from zero" is the fusion that starts as the structure alone."""
FIXED: Final = Part(
    name="fixed_weights",
    place=9,
    title="the paper's weighted fusion: weights learnt, and fixed",
    variants=lines(
        v.line,
        _FUSED,
        {
            f"{UNDER}, fusion: {v.FUSIONS['weighted']}": {"fusion": "weighted"},
            **{
                f"{UNDER}, fusion: {v.FUSIONS['weighted']}, modalities {share:.2g}": {
                    "fusion": "weighted",
                    "fusion_weight": share,
                }
                for share in (0.02, 0.1, 0.3, 2 / 3)
            },
        },
    ),
    by_default=False,
)
"""Two modalities in equal shares; with two thirds for both, the fusion is the mean of all three parts."""
