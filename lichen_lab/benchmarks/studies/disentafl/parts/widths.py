"""The paper's widths on the smallest fleet: d 768, latent 128, decoders 128 wide, MoDE's bottleneck 64."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.variants import Part, Results

WIDE: Final = "d 768, latent 128"
SIZES: Final[Mapping[str, Any]] = {"width": 768, "latent": 128, "hidden": 128}
RATE: Final = 0.0005
"""Of all methods: .002 to .008 are of a width of 64. Not tuned."""
_TITLES: Final = (v.TITLES[v.LOCAL], v.TITLES[v.FEDAVG])


def _rows(results: Results) -> list[ResultRow]:
    return [*results.scores(), *results.margins(v.AVG, _TITLES)]


PART: Final = Part(
    name="widths",
    place=7,
    title="the paper's widths",
    variants=(
        *(v.line(v.VEHICLE, title, WIDE, lr=RATE, **SIZES) for title in _TITLES),
        v.line(v.VEHICLE, v.AVG, WIDE, lr=RATE, bottleneck=64, **SIZES),
    ),
    rows=_rows,
    by_default=False,
)
