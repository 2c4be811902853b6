"""Every method over the same grid of learning rates, on seeds that no table uses: all tuned alike."""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF, flow_of
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, line
from lichen_lab.benchmarks.study.part import grid_rows


def _variant(method: str, lr: float) -> Line:
    return line(method, f"{HALF}, lr {lr:g}", flow_of(method), v.quantity(method, lr=lr))


def _literal(lr: float) -> Line:
    config = v.quantity(v.PNR, v.LITERAL, lr=lr)
    return line(v.PNR, f"{HALF}, {v.LITERAL}, lr {lr:g}", v.HALF, config)


PART: Final = Part(
    name="tune",
    place=21,
    title="learning rates, on seeds of their own",
    variants=(
        *(_variant(method, lr) for method in v.QUANTITY for lr in v.GRID),
        *(_literal(lr) for lr in v.GRID),
    ),
    rows=partial(
        grid_rows,
        under=HALF,
        rate=lambda line: float(line.spec.setting.config["lr"]),
        chosen=lambda _: float(v.ALL_METHODS["lr"]),
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
