"""Bytes of a device and round, by kind of device: the method's, beside those of whole models."""

from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.variants import Part, Results

_METHODS: Final = (v.TITLES[v.FEDAVG], v.AVG, v.KD)


def up(kind: str) -> str:
    """The metric of the bytes that a kind of device sends."""
    return f"bytes up a round: {kind}"


def down(kind: str) -> str:
    """The metric of the bytes that it receives."""
    return f"bytes down a round: {kind}"


def _rows(results: Results) -> list[ResultRow]:
    rows = []
    for variant, runs in results.pairs():
        kinds = next(iter(runs.values())).kinds
        for kind in dict.fromkeys(kinds.values()):
            members = [name for name, other in kinds.items() if other == kind]
            sent = [fmean(one.bytes_up[m] for m in members) for one in runs.values()]
            received = [fmean(one.bytes_down[m] for m in members) for one in runs.values()]
            rows += [*results.row(variant, up(kind), sent), *results.row(variant, down(kind), received)]
    return rows


PART: Final = Part(
    name="bytes",
    place=3,
    title="bytes of a device and round, by kind of device",
    variants=tuple(v.line(fleet, title) for fleet in v.FLEETS for title in _METHODS),
    rows=_rows,
)
