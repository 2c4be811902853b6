"""Every method over the same grid of learning rates, on seeds that no table uses: all tuned alike."""

from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.part import Line, Part, Results, line
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF
from lichen_lab.benchmarks.study.part import usual

_BEST: Final = "best learning rate of the grid"
_CHOSEN: Final = "learning rate in the tables"


def _variant(method: str, lr: float) -> Line:
    flow = v.CLEAN if method == v.FC else v.HALF
    return line(method, f"{HALF}, lr {lr:g}", flow, v.quantity(method, lr=lr))


def _literal(lr: float) -> Line:
    config = v.quantity(v.PNR, v.LITERAL, lr=lr)
    return line(v.PNR, f"{HALF}, {v.LITERAL}, lr {lr:g}", v.HALF, config)


def _rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    for method in v.QUANTITY:
        tried = [
            (fmean(one.accuracy for one in runs.values()), variant)
            for variant in results.part.variants
            if variant.method == method and (runs := results.of(method, variant.under))
        ]
        if tried:
            best = max(tried, key=lambda pair: pair[0])[1]
            shown = Line(method, best.spec, HALF)
            rows += results.row(shown, _BEST, [float(best.spec.setting.config["lr"])])
            rows += results.row(shown, _CHOSEN, [float(v.quantity(method)["lr"])])
    return rows


PART: Final = Part(
    name="tune",
    place=21,
    title="learning rates, on seeds of their own",
    variants=(
        *(_variant(method, lr) for method in v.QUANTITY for lr in v.GRID),
        *(_literal(lr) for lr in v.GRID),
    ),
    rows=_rows,
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
