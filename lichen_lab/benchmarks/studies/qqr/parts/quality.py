"""Quality imbalance: in half of the rounds one modality is noisy, and the stream says which (beta = 0.5)."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, line
from lichen_lab.benchmarks.study.part import above


def under(snr_db: float, rule: str) -> str:
    """The conditions as text."""
    return f"noise at {snr_db:g} dB in half of the rounds, {rule}"


def variant(method: str, snr_db: float, rule: str) -> Line:
    """A method at a noise under a rule."""
    flow = v.CLEAN if method == v.PQ else v.noisy(snr_db)
    return line(method, under(snr_db, rule), flow, v.quality(method, rule))


_USUAL: Final = (v.PQ, v.PLR, v.BQ)
PART: Final = Part(
    name="quality",
    place=3,
    title="a modality is noisy while training: pulled to its prototypes, and bare",
    variants=(
        *(variant(method, snr_db, v.NORMALISED) for snr_db in v.SNR_DB for method in _USUAL),
        *(variant(method, 0.0, v.LITERAL) for method in _USUAL),
    ),
    versus=((v.PQ, v.PLR), (v.PLR, v.BQ)),
    goals=(Goal(above(v.BQ), 0.9, above=True, setting=under(0.0, v.NORMALISED), method=v.PLR),),
)
_HALVES: Final = ((0.0, (v.PLR, v.PLR_ALL_NORMS, v.CLEAN_NORMS, v.BQ)), (-5.0, (v.PLR, v.CLEAN_NORMS, v.BQ)))
ATTRIBUTION: Final = Part(
    name="attribution",
    place=19,
    title="a modality is noisy while training: which half of the method gains what",
    variants=(
        *(variant(method, snr_db, v.NORMALISED) for snr_db, methods in _HALVES for method in methods),
        *(variant(method, 10.0, v.LITERAL) for method in _USUAL),
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
"""The ablation of the method, also at the paper's noise under its literal rule."""
BEYOND: Final = Part(
    name="beyond",
    place=20,
    title="one step beyond the paper: noise kept out of BatchNorm's statistics, five seeds",
    variants=tuple(
        line(method, f"{under(0.0, v.NORMALISED)}, five seeds", v.noisy(0.0), v.quality(method, v.NORMALISED))
        for method in (v.PLR, v.PLR_ALL_NORMS)
    ),
    versus=((v.PLR, v.PLR_ALL_NORMS),),
    by_default=False,
    seeds=(5, 6, 7, 8, 9),
)
"""The pull to prototypes alone is the paper's, which has no BatchNorm. The tables' seeds, 0 to 4, were known
when the change became the default."""
