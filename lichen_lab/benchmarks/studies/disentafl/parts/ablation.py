"""The contribution of each piece of the method: the auxiliary losses, the expert families, the bandit."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.variants import EVERYBODY, Line, Part, Results
from lichen_lab.benchmarks.study.part import paired

_FLEETS: Final = (v.MERGE_FA,)
WITHOUT: Final[Mapping[str, Mapping[str, Any]]] = {
    "L_align": {"align": 0.0},
    "L_orth": {"orthogonal": 0.0},
    "both auxiliary losses": {"align": 0.0, "orthogonal": 0.0},
    "domain experts (MoDE)": {"families": ["mote", "mome"]},
    "task experts (MoTE)": {"families": ["mode", "mome"]},
    "modality experts (MoME)": {"families": ["mode", "mote"]},
}
"""Piece -> the options that leave it out."""
LIKE: Final[Mapping[str, Mapping[str, Any]]] = {
    "last layer interpolated": {"last_layer": "interpolated"},
    "last layer shared": {"last_layer": "shared"},
    "keeping 0.4 of its own weights": {"own_share": 0.4},
    "updates in float32": {"uplink": "float32"},
    "no domain at random": {"epsilon": 0.0},
}
"""Replacement of a piece -> its options. Keeping own weights is not in the paper. Updates in float32 are what
the baselines send."""
SOME: Final = 9
"""Devices in a round, if they are selected: a third of MERGE-FA's."""
_CHOSEN: Final = f"{SOME} devices in a round"
BANDIT: Final = f"{v.AVG}, chosen by the bandit"
COVERAGE: Final = f"{v.AVG}, chosen by coverage"
ABOVE_WHOLE: Final = "above the whole method, points"
"""Also of lines under other conditions: the whole method has all devices in every round."""


def without(what: str) -> str:
    """The variant's name."""
    return f"{v.AVG} without {what}"


def _variants() -> tuple[Line, ...]:
    made = []
    for fleet in _FLEETS:
        made.append(v.line(fleet, v.AVG))
        made += [v.line(fleet, v.AVG, named=without(what), **more) for what, more in WITHOUT.items()]
        made += [v.line(fleet, v.AVG, named=f"{v.AVG}, {what}", **more) for what, more in LIKE.items()]
        made += [
            v.line(fleet, v.AVG, _CHOSEN, named=name, devices_per_round=SOME, selection=policy)
            for name, policy in ((BANDIT, "bandit"), (COVERAGE, "coverage"))
        ]
    return tuple(made)


def _rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for variant, runs in results.pairs():
        if variant.method == v.AVG:
            continue
        whole = results.of(v.AVG, EVERYBODY, variant.dataset)
        for figure, what in ((v.PERSONAL, ""), (v.AGGREGATE, "as the fleet gives it: ")):
            rows += results.row(variant, f"{what}{ABOVE_WHOLE}", paired(runs, whole, figure.of))
    return rows + results.margins(BANDIT, [COVERAGE])


PART: Final = Part(
    name="ablation",
    place=2,
    title="the method without each of its pieces",
    variants=_variants(),
    rows=_rows,
)
