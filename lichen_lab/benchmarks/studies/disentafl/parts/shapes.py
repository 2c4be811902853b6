"""Fleets in the shape of others of the paper, from the data at hand.

Learning rates and options are those of a fleet of the tables (``variants.TUNED_ON``): nothing is tuned here.
"""

from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.parts import equal
from lichen_lab.benchmarks.studies.disentafl.variants import Line, Part, Results

RULE: Final = {
    v.VEHICLE_RANDOM: equal.BLENDED,
    v.MERGE_AC: equal.OWN,
    v.MERGE_VM: equal.BLENDED,
    v.MERGE_MM: equal.OWN,
}
"""Fleet -> what the devices of every method keep."""
_FEW: Final = (v.TITLES[v.LOCAL], v.TITLES[v.FEDAVG], v.TITLES[v.FEDMSPLIT])
"""Of the baselines, those that rho is shown with."""


def _lines(fleet: str, rule: str) -> list[Line]:
    shared = [equal.line(fleet, title, rule) for title in (v.AVG, *equal.BASELINES)]
    return [v.line(fleet, v.TITLES[v.LOCAL]), *shared, v.line(fleet, v.KD)]


def _rows(results: Results) -> list[ResultRow]:
    rows = [*results.scores()]
    for rule in dict.fromkeys(RULE.values()):
        rows += equal.beside(results, rule)
    return rows


SHAPES: Final = Part(
    name="shapes",
    place=5,
    title="Vehicle dealt at random, the shapes of MERGE-AC, -VM and -MM: every method",
    variants=tuple(line for fleet, rule in RULE.items() for line in _lines(fleet, rule)),
    rows=_rows,
    by_default=False,
)
RHO: Final = Part(
    name="rho",
    place=6,
    title="MERGE-VM's shape by the share of devices that have one sensor",
    variants=tuple(
        line
        for fleet in v.RHO.values()
        for line in _lines(fleet, equal.BLENDED)
        if line.method in {*_FEW, *(equal.titled(title, equal.BLENDED) for title in (v.AVG, *_FEW[1:]))}
    ),
    rows=_rows,
    by_default=False,
)
