"""Devices that lack modalities, each with the same probability; beside the paper's figures."""

from collections.abc import Mapping
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.variants import F1, Part, Results
from lichen_lab.benchmarks.study.part import lines, usual

RATES: Final = (0.5, 0.7, 0.8)
_TACTFL: Final = (77.92, 75.83, 75.12)
PAPER: Final[Mapping[str, tuple[float, float, float]]] = {
    v.TACTFL: _TACTFL,
    v.TACTFL_PLAIN: _TACTFL,
    v.BASELINES[v.FEDOPT]: (74.79, 66.17, 56.45),
    v.BASELINES[v.FEDPROX]: (70.14, 69.37, 68.77),
    v.BASELINES[v.MOON]: (74.87, 73.63, 72.78),
    v.BASELINES[v.FPL]: (75.16, 74.28, 73.46),
    v.BASELINES[v.AUTOENCODER]: (71.57, 70.58, 68.62),
    v.BASELINES[v.FEDMSPLIT]: (74.76, 73.32, 72.77),
    "MFCPL": (77.44, 75.61, 75.19),
}
"""Table 3 of the paper, F1 in % by rate. The study does not have the last one."""
_LEFT_OUT: Final = {v.BASELINES[v.FEDAVG], v.TACTFL_SHORTER_TUNED}
_LINES: Final = tuple(title for title in v.LINES if title not in _LEFT_OUT)
"""FedOpt is there, and the paper has no figure of FedAvg."""
BESIDE: Final = "more than the paper's figure, points"


def under(rate: float) -> str:
    """A rate as text."""
    return f"missing {rate:g}"


def _rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    for variant, runs in results.pairs():
        published = dict(zip(map(under, RATES), PAPER.get(variant.method, ()), strict=False)).get(
            variant.under
        )
        if published is not None:
            rows += results.row(variant, BESIDE, [one.f1() - published for one in runs.values()])
    return rows


PART: Final = Part(
    name="missing",
    place=2,
    title="modalities missing by device, beside the paper's table 3",
    variants=lines(v.line, _LINES, {under(rate): {"conditions": {"missing": rate}} for rate in RATES}),
    versus=(*v.AHEAD, (v.TACTFL, v.NO_SIMILARITY)),
    rows=_rows,
    goals=tuple(
        Goal(F1, limit, above=True, setting=under(rate), method=v.TACTFL, dataset=v.UCI_HAR)
        for rate, limit in zip(RATES, (77.9, 75.8, 75.1), strict=True)
    ),
)
