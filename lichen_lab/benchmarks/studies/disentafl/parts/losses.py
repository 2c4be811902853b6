"""The auxiliary losses at weights at which they can matter, for both variants: the paper's Table 2.

The main table's weights are .01 on MERGE-FA, where neither loss can move anything. Here each is left out of
runs at .1 and at the paper's 1.2 (L_align, its first stage) and 4 (L_orth, its second).
"""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.variants import Line, Part, Results

WEIGHTS: Final[Mapping[str, tuple[float, float]]] = {"1.2 and 4": (1.2, 4.0), "0.1 and 0.1": (0.1, 0.1)}
"""In words -> weights of L_align and L_orth; the paper's first."""
WHOLE: Final = "both losses"
WITHOUT: Final[Mapping[str, Mapping[str, Any]]] = {
    WHOLE: {},
    "without L_align": {"align": 0.0},
    "without L_orth": {"orthogonal": 0.0},
    "without both": {"align": 0.0, "orthogonal": 0.0},
}


def named(title: str, what: str) -> str:
    """A line's name."""
    return f"{title}, {what}"


def _variants() -> tuple[Line, ...]:
    return tuple(
        v.line(
            v.MERGE_FA,
            title,
            under,
            named=named(title, what),
            **{"align": align, "orthogonal": orthogonal, **less},
        )
        for under, (align, orthogonal) in WEIGHTS.items()
        for title in (v.AVG, v.KD)
        for what, less in WITHOUT.items()
    )


def _rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for title in (v.AVG, v.KD):
        for what in WITHOUT:
            if what != WHOLE:
                rows += results.margins(named(title, what), (named(title, WHOLE),))
                rows += results.margins(
                    named(title, what), (named(title, WHOLE),), v.AGGREGATE.of, "as the fleet gives it: "
                )
    return rows


PART: Final = Part(
    name="losses",
    place=3,
    title="the auxiliary losses left out, at two pairs of weights, on MERGE-FA",
    variants=_variants(),
    rows=_rows,
    by_default=False,
)
