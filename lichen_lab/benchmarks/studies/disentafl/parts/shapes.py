"""Fleets in the shape of others of the paper, from the data at hand.

Learning rates and options are those of a fleet of the tables (``variants.TUNED_ON``). MERGE-VM's shape, where
DisentAFL-Avg is behind with them, also has rates of its own, and the method without its pieces: half of the
devices observe vehicles, the other half people, so the shared experts are all that they share.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.parts import equal
from lichen_lab.benchmarks.studies.disentafl.variants import Line, Part, Results
from lichen_lab.benchmarks.study.part import grid_rows

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
_LOCAL: Final = v.TITLES[v.LOCAL]
_TITLES: Final = (_LOCAL, *equal.BASELINES, v.AVG)
VM_GRID: Final = (0.004, 0.008, 0.016)
VM_LR: Final[Mapping[str, float]] = dict(
    zip(_TITLES, (0.004, 0.008, 0.008, 0.004, 0.016, 0.004, 0.008), strict=True)
)
"""Method's title -> best learning rate of the part ``vm_tune``."""
OWN_RATE: Final = "each at its best learning rate on this fleet"
_RULES: Final = (equal.BLENDED, equal.KEEPING)
"""Those of DisentAFL-Avg on Vehicle-xM and on UCI-HAR xM, whose windows the two halves of the fleet have."""
CHANGED: Final[Mapping[str, Mapping[str, Any]]] = {
    "without domain experts (MoDE)": {"families": ["mote", "mome"]},
    "without task experts (MoTE)": {"families": ["mode", "mome"]},
    "without modality experts (MoME)": {"families": ["mode", "mote"]},
    "without auxiliary losses": {"align": 0.0, "orthogonal": 0.0},
}
"""What is changed in the whole method -> the options."""


def _on_vm(title: str, rule: str, under: str, **options: Any) -> Line:
    if title == _LOCAL:
        return v.line(v.MERGE_VM, title, under, **options)
    usual = (title, rule) == (v.AVG, equal.BLENDED)
    given = {} if usual else equal.RULES[rule]
    return v.line(v.MERGE_VM, title, under, named=equal.titled(title, rule), **{**given, **options})


def _vm_rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for rule in _RULES:
        ours = equal.titled(v.AVG, rule)
        others = [_LOCAL, *(equal.titled(title, rule) for title in equal.BASELINES)]
        for figure, what in ((v.PERSONAL, ""), (v.AGGREGATE, "as the fleet gives it: ")):
            rows += results.margins(ours, others, figure.of, what)
    whole = equal.titled(v.AVG, equal.BLENDED)
    for changed in CHANGED:
        rows += results.margins(f"{v.AVG}, {changed}", (whole,))
    for variant, runs in results.pairs():
        for kind in dict.fromkeys(next(iter(runs.values())).kinds.values()):
            values = [v.of_kind(kind)(one) for one in runs.values()]
            rows += results.row(variant, f"own models of a kind, %: {kind}", values)
    return rows


VM_TUNE: Final = Part(
    name="vm_tune",
    place=10,
    title="MERGE-VM's shape: learning rates of every method, on seeds and windows of their own",
    variants=(
        *(
            _on_vm(title, equal.BLENDED, f"lr {lr:g}", lr=lr, tuning=True)
            for title in _TITLES
            for lr in VM_GRID
        ),
        *(
            _on_vm(title, equal.KEEPING, f"lr {VM_LR[title]:g}", lr=VM_LR[title], tuning=True)
            for title in _TITLES[1:]
        ),
    ),
    rows=partial(
        grid_rows,
        under="grid",
        rate=lambda line: line.spec.setting.lr,
        chosen=lambda line: VM_LR[line.method.split(", ", 1)[0]],
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
VM: Final = Part(
    name="vm",
    place=6,
    title="MERGE-VM's shape, each method at a rate of its own; DisentAFL-Avg without its pieces",
    variants=(
        _on_vm(_LOCAL, "", OWN_RATE, lr=VM_LR[_LOCAL]),
        *(_on_vm(title, rule, OWN_RATE, lr=VM_LR[title]) for rule in _RULES for title in _TITLES[1:]),
        *(
            v.line(v.MERGE_VM, v.AVG, OWN_RATE, named=f"{v.AVG}, {what}", lr=VM_LR[v.AVG], **options)
            for what, options in CHANGED.items()
        ),
    ),
    rows=_vm_rows,
    by_default=False,
)
