"""Tables of means alone: kinds of device or sizes down, methods or figures across."""

from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import cost
from lichen_lab.benchmarks.studies.disentafl import names as n
from lichen_lab.benchmarks.studies.disentafl.part import Results, of_kind
from lichen_lab.benchmarks.study.report.sheets import Pivot, Sheet


def _by_kind(row: ResultRow) -> tuple[str, str]:
    """``bytes up a round: kind``: kinds down, methods and directions across."""
    what, _, kind = row.metric.partition(": ")
    return kind, f"{row.method}: {what}"


def _by_size(row: ResultRow) -> tuple[str, str]:
    """Conditions down; figures of the method and, named, of what it is compared with across."""
    ours = row.method in {n.AVG, cost.DEVICE}
    return row.setting, row.metric if ours else f"{row.method}: {row.metric}"


BY_KIND: Final[Pivot] = _by_kind
BY_SIZE: Final[Pivot] = _by_size


def kinds(results: Results, fleet: str) -> Sheet | None:
    """Own models by kind of device, mean over seeds and devices, in %; None where nothing was run."""
    told = [(v.method, runs) for v, runs in results.pairs() if v.spec.fleet == fleet]
    if not told:
        return None
    names = dict.fromkeys(next(iter(told[0][1].values())).kinds.values())
    lines = tuple(
        (kind, tuple(fmean(map(of_kind(kind), runs.values())) for _, runs in told)) for kind in names
    )
    methods, local = tuple(method for method, _ in told), n.TITLES[n.LOCAL]
    return Sheet(
        "own models by kind of device, mean over seeds, %; green: above Local, red: below",
        methods,
        lines,
        methods.index(local) if local in methods else None,
    )
