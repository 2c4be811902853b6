"""Both imbalances at once: a modality is missing in some rounds, and one is noisy in some rounds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.settings import StreamConditions
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, line

NEITHER: Final = "FC and PQ (nothing missing, no noise)"
BOTH: Final = "PNR and PLR"
NORMS: Final = "PNR and clean BatchNorm statistics"
PNR: Final = "PNR alone"
PLR: Final = "ZP (zero input) and PLR"
ZP: Final = "ZP (zero input) alone"
IS: Final = "IS alone"
_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    NEITHER: (v.FC, v.PQ),
    BOTH: (v.PNR, v.PLR),
    NORMS: (v.PNR, v.CLEAN_NORMS),
    PNR: (v.PNR, v.BQ),
    PLR: (v.ZP_INPUT, v.PLR),
    ZP: (v.ZP_INPUT, v.BQ),
    IS: (v.IS, v.BQ),
}
"""Line -> what it does about missing windows, and about noisy ones."""
SNR_DB: Final = (10.0, 0.0)


def under(snr_db: float) -> str:
    """The conditions as text."""
    return f"90 % missing in half of the rounds, noise at {snr_db:g} dB in half of them"


def options(method: str) -> dict[str, Any]:
    """All options of a line."""
    missing, noisy = _OPTIONS[method]
    return {**v.quality(noisy), **v.QUANTITY[missing]}


def flow(snr_db: float) -> StreamConditions:
    """A stream with both imbalances; each chooses its rounds by itself."""
    return replace(
        v.noisy(snr_db), missing_share=v.HALF.missing_share, affected_rounds=v.HALF.affected_rounds
    )


def _variant(method: str, snr_db: float) -> Line:
    return line(method, under(snr_db), v.CLEAN if method == NEITHER else flow(snr_db), options(method))


PART: Final = Part(
    name="both",
    place=18,
    title="a modality is missing and one is noisy while training",
    variants=tuple(_variant(method, snr_db) for snr_db in SNR_DB for method in _OPTIONS),
    versus=tuple((BOTH, method) for method in _OPTIONS if method != BOTH),
    by_default=False,
)
