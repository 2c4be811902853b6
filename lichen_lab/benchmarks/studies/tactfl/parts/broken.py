"""One of five devices is broken: its weight, and the loss of F1."""

from collections.abc import Mapping
from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome
from lichen_lab.benchmarks.studies.tactfl.variants import Part, Results
from lichen_lab.benchmarks.study.part import lines, paired, usual

DEVICES: Final = 5
FAULTS: Final[Mapping[str, str]] = {
    "none broken": "",
    "1 of 5 broken: noise": "noise",
    "1 of 5 broken: axes with the wrong sign": "flipped",
}
"""Text -> a name of :mod:`lichen_lab.benchmarks.studies.tactfl.data.dealing`."""
WEIGHT: Final = "weight of the broken device, shares of an equal one"
COST: Final = "F1 lost to the broken device, points"
_SOUND: Final = next(iter(FAULTS))


def weight(outcome: TactflOutcome) -> float:
    """Mean share of the broken devices over rounds and encoders; 0 if their updates were refused."""
    broken = [name for name, kind in outcome.kinds.items() if kind]
    return fmean(outcome.shares.get(name, 0.0) for name in broken)


def _rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    for variant, runs in results.pairs():
        if variant.under == _SOUND:
            continue
        rows += results.row(variant, WEIGHT, [weight(one) for one in runs.values()])
        rows += results.row(variant, COST, paired(results.of(variant.method, _SOUND), runs, TactflOutcome.f1))
    return rows


PART: Final = Part(
    name="broken",
    place=8,
    title="one of five devices broken: what it weighs, and what it costs",
    variants=lines(
        v.line,
        (*v.OURS, *v.EQUAL),
        {words: {"conditions": {"devices": DEVICES, "broken": fault}} for words, fault in FAULTS.items()},
    ),
    versus=v.SIMILARITY,
    rows=_rows,
    goals=tuple(
        Goal(metric, limit, setting=words, method=v.TACTFL, dataset=v.UCI_HAR)
        for words in tuple(FAULTS)[1:]
        for metric, limit in ((WEIGHT, 0.9), (COST, 2.0))
    ),
)
