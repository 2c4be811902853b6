"""FB15K-237 in full, three clients, 128 numbers an entity: within a limit of CPU minutes."""

from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import WHOLE
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Part, Results
from lichen_lab.benchmarks.study.part import lines, usual

UNDER: Final = "r = 50 %"
MINUTES: Final = (3, 6, 10, 20)
EARLY: Final = "MRR within 6 minutes of CPU, %"
CPU: Final = "minutes of CPU"
ROUNDS: Final = "rounds"
_LINES: Final = (v.FEDE, v.MMFEDE, v.MMFEDE_HIDE, v.OURS, v.S_IND)
_ENOUGH: Final = 31.0


def _rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    for variant, runs in results.pairs():
        for minutes in MINUTES:
            early = [look for one in runs.values() if (look := one.within(60 * minutes)) is not None]
            metric = f"MRR within {minutes} minutes of CPU, %"
            rows += results.row(variant, metric, [100 * look.test["mrr"] for look in early])
        last = [one.looks[-1] for one in runs.values()]
        rows += results.row(variant, CPU, [look.cpu_s / 60 for look in last])
        rows += results.row(variant, ROUNDS, [float(look.round) for look in last])
    return rows


PART: Final = Part(
    name="full",
    place=8,
    title="FB15K-237 in full at 128/64, three clients, 20 minutes of CPU each",
    variants=lines(v.line, _LINES, {UNDER: {"graph": WHOLE}}),
    versus=((v.OURS, v.MMFEDE), (v.OURS, v.FEDE)),
    rows=_rows,
    goals=tuple(
        Goal(EARLY, _ENOUGH, above=True, setting=UNDER, method=title, dataset=WHOLE)
        for title in (v.FEDE, v.MMFEDE)
    ),
    by_default=False,
    seeds=(0,),  # five runs, a good hour on two cores
)
_EARLY_S: Final = 360.0


def _warm(title: str, rounds: int, **setting: float) -> v.Line:
    under = f"{UNDER}, a warm start of {rounds} rounds"
    return v.line(title, under, graph=WHOLE, setting={"warmup": rounds, **setting})


WARM: Final = Part(
    name="full_warm",
    place=8,
    title="FB15K-237 in full, with more first rounds of structure alone, within the same minutes of CPU",
    variants=(_warm(v.MMFEDE, 10, cpu_s=_EARLY_S), _warm(v.MMFEDE, 30), _warm(v.OURS, 30)),
    versus=((v.OURS, v.MMFEDE),),
    rows=_rows,
    by_default=False,
    seeds=(0,),
)
"""The parts' other runs have four such rounds, of which MMFeD3-HidE makes seven in 20 minutes."""
