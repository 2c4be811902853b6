"""Every method over the same grid of learning rates: all tuned alike.

On seeds that no table uses; evaluated on training people who train nothing, never on the test people.
"""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF, flow_of
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, line
from lichen_lab.benchmarks.study.part import grid_rows

_UNDER: Final = f"{HALF}, held-out people"


def _variant(method: str, lr: float) -> Line:
    config = v.quantity(method, lr=lr)
    return line(method, f"{_UNDER}, lr {lr:g}", flow_of(method), config, tuning=True)


PART: Final = Part(
    name="tune",
    place=21,
    title="learning rates, on seeds and people of their own",
    variants=tuple(_variant(method, lr) for method in v.QUANTITY for lr in v.GRID),
    rows=partial(
        grid_rows,
        under=_UNDER,
        rate=lambda line: float(line.spec.setting.config["lr"]),
        chosen=lambda _: float(v.ALL_METHODS["lr"]),
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
