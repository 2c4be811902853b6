"""Quality imbalance taken apart: which half of the method gains what; the paper's noise and literal rule."""

from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.part import Part
from lichen_lab.benchmarks.studies.qqr.parts.quality import variant

_HALVES: Final = ((0.0, (v.PLR, v.PLR_ALL_NORMS, v.CLEAN_NORMS, v.BQ)), (-5.0, (v.PLR, v.CLEAN_NORMS, v.BQ)))

PART: Final = Part(
    name="attribution",
    place=19,
    title="a modality is noisy while training: which half of the method gains what",
    variants=(
        *(variant(method, snr_db, v.NORMALISED) for snr_db, methods in _HALVES for method in methods),
        *(variant(method, 10.0, v.LITERAL) for method in (v.PQ, v.PLR, v.BQ)),
    ),
    versus=(
        (v.PLR, v.BQ),
        (v.PLR, v.PLR_ALL_NORMS),
        (v.PLR, v.CLEAN_NORMS),
        (v.PLR_ALL_NORMS, v.BQ),
        (v.CLEAN_NORMS, v.BQ),
    ),
    by_default=False,
)
