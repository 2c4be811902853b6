"""The traffic: rows by the size of their change, and their numbers' codec, beside all rows in float32."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Part, Results, best
from lichen_lab.benchmarks.study.part import lines, paired

WHOLE: Final = "float32, all rows"
LINES: Final[Mapping[str, Mapping[str, Any]]] = {
    WHOLE: {"setting": {"codec": "float32"}},
    "int8, all rows": {"setting": {"codec": "int8"}},
    "int8, half of the rows": {"setting": {"codec": "int8"}, "rows_share": 0.5},
    "int8, a quarter of the rows": {"setting": {"codec": "int8"}, "rows_share": 0.25},
    "int4, all rows": {"setting": {"codec": "int4"}},
    "int4, half of the rows": {"setting": {"codec": "int4"}, "rows_share": 0.5},
}
"""Text -> codec, and share of the rows with the largest change."""
CHOSEN: Final = "int8, half of the rows"
"""The setting of the goals."""
UP: Final = "bytes up of a device and round"
DOWN: Final = "bytes down of a device and round"
SHARE: Final = "bytes up over all rows in float32"
LOST: Final = "MRR below float32's, points"
_FIFTH: Final = 0.2
_EQUAL: Final = 0.3
"""Points of MRR that count as equal: .003."""


def _rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    whole = results.of(v.OURS, WHOLE)
    for variant, runs in results.pairs():
        outcomes = list(runs.values())
        rows += results.row(variant, UP, [one.bytes_up for one in outcomes])
        rows += results.row(variant, DOWN, [one.bytes_down for one in outcomes])
        rows += results.row(variant, SHARE, [one.bytes_up / one.bytes_whole for one in outcomes])
        rows += results.row(variant, LOST, paired(whole, runs, partial(best, "mrr")))
    return rows


PART: Final = Part(
    name="bytes",
    place=5,
    title="what a device sends in a round",
    variants=lines(v.line, (v.OURS,), LINES),
    rows=_rows,
    goals=(
        Goal(SHARE, _FIFTH, setting=CHOSEN, method=v.OURS, dataset=BUSY),
        Goal(LOST, _EQUAL, setting=CHOSEN, method=v.OURS, dataset=BUSY),
    ),
)
