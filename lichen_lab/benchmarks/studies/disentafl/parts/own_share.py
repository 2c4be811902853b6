"""Kinds of device whose own model is below Local's, by the share of own weights that devices keep.

``own_share`` is not in the paper. Compared with what Local has on the same seeds, kind by kind.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.parts.table import WORST, of
from lichen_lab.benchmarks.studies.disentafl.variants import Part, Results, of_kind
from lichen_lab.benchmarks.study.part import paired

SHARES: Final[Mapping[str, tuple[float, ...]]] = {
    v.UCI_HAR: (0.4, 0.7, 0.9, 1.0),
    v.MERGE_FA: (0.0, 0.4, 0.7, 1.0),
}
"""Fleet -> shares; its usual one first. With 1 a device trains the network of its route alone."""
SLOWER: Final = 0.004
"""Half of the usual rate, and Local's. On UCI-HAR xM both are level on the tuning seeds (81.1, 81.0)."""
_LOCAL: Final = v.TITLES[v.LOCAL]


def named(share: float) -> str:
    """A line's name."""
    return f"{v.AVG}, {share:g} of its weights kept"


def _rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for ours in dict.fromkeys(variant.method for variant, _ in results.pairs()):
        rows += results.margins(ours, (_LOCAL,)) if ours != _LOCAL else []
    for variant, runs in results.pairs():
        local = results.of(_LOCAL, variant.under, variant.dataset)
        if variant.method == _LOCAL or not local:
            continue
        kinds = dict.fromkeys(next(iter(runs.values())).kinds.values())
        by_kind = {kind: paired(runs, local, of_kind(kind)) for kind in kinds}
        for kind, values in by_kind.items():
            rows += results.row(variant, of(kind), values)
        rows += results.row(variant, WORST, min(by_kind.values(), key=fmean))
    return rows


PART: Final = Part(
    name="own_share",
    place=6,
    title="kinds of device below their own Local, by the share of own weights that a device keeps",
    variants=(
        *(v.line(fleet, _LOCAL) for fleet in SHARES),
        *(
            v.line(fleet, v.AVG, named=named(share), own_share=share)
            for fleet, shares in SHARES.items()
            for share in shares
        ),
        *(
            v.line(fleet, v.AVG, named=f"{named(share)}, lr {SLOWER:g}", own_share=share, lr=SLOWER)
            for fleet, share in ((v.UCI_HAR, 0.4), (v.UCI_HAR, 1.0), (v.MERGE_FA, 1.0))
        ),
    ),
    rows=_rows,
    by_default=False,
)
