"""Quality imbalance: in half of the rounds one modality is noisy, and the stream says which (beta = 0.5)."""

from typing import Final

from lichen.bench.qqr import variants as v
from lichen.bench.qqr.part import Part, Variant, above
from lichen.bench.qqr.setting import Setting
from lichen.bench.result import Goal


def under(snr_db: float, rule: str) -> str:
    """The conditions in words."""
    return f"noise at {snr_db:g} dB in half of the rounds, {rule}"


def _variant(method: str, snr_db: float, rule: str) -> Variant:
    flow = v.CLEAN if method == v.PQ else v.noisy(snr_db)
    return Variant(method, under(snr_db, rule), Setting(flow=flow, config=v.quality(method, rule)))


_USUAL: Final = (v.PQ, v.PLR, v.BQ)
_LITERALLY_DB: Final = (10.0, 0.0)
"""The paper's noise, and that of the goal."""
_WHY: Final = (
    _variant(v.PLR_ALL_NORMS, 0.0, v.NORMALISED),
    _variant(v.CLEAN_NORMS, 0.0, v.NORMALISED),
    _variant(v.CLEAN_NORMS, -5.0, v.NORMALISED),
)
"""Which of PLR's two halves gains what."""

PART: Final = Part(
    name="quality",
    place=3,
    title="a modality is noisy while training: pulled to its prototypes, and bare",
    variants=(
        *(_variant(method, snr_db, v.NORMALISED) for snr_db in v.SNR_DB for method in _USUAL),
        *(_variant(method, snr_db, v.LITERAL) for snr_db in _LITERALLY_DB for method in _USUAL),
        *_WHY,
    ),
    versus=(
        (v.PQ, v.PLR),
        (v.PLR, v.BQ),
        (v.PLR, v.PLR_ALL_NORMS),
        (v.PLR, v.CLEAN_NORMS),
        (v.PLR_ALL_NORMS, v.BQ),
    ),
    goals=(Goal(above(v.BQ), 0.9, above=True, setting=under(0.0, v.NORMALISED), method=v.PLR),),
)
