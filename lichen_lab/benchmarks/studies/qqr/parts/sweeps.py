"""The paper's Figs. 5 to 7: missing share, affected rounds, noisy rounds. Long: only on request."""

from dataclasses import replace
from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.settings import StreamConditions
from lichen_lab.benchmarks.studies.qqr.variants import Part, line

MISSING: Final = (0.3, 0.5, 0.7, 0.9, 1.0)
AFFECTED: Final = (0.3, 0.5, 0.7, 1.0)
NOISY: Final = (0.3, 0.5, 0.7, 1.0)
SNR_DB: Final = (10.0, 0.0)
"""The paper's noise, and one that shows."""
_QUANTITY: Final = (v.PNR, v.ZP_INPUT, v.IS)
"""The paper's own."""


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _missing() -> dict[str, StreamConditions]:
    half = {
        f"{_percent(share)} missing in half of the rounds": replace(v.HALF, missing_share=share)
        for share in MISSING
    }
    rounds = {
        f"90 % missing in {_percent(share)} of the rounds": replace(v.HALF, affected_rounds=share)
        for share in AFFECTED
    }
    return half | rounds


def _noisy() -> dict[str, StreamConditions]:
    return {
        f"noise at {snr_db:g} dB in {_percent(share)} of the rounds": replace(
            v.noisy(snr_db), noisy_rounds=share
        )
        for snr_db in SNR_DB
        for share in NOISY
    }


PART: Final = Part(
    name="sweeps",
    place=20,
    title="missing share, affected rounds, noisy rounds",
    variants=(
        *(
            line(method, words, flow, v.quantity(method))
            for words, flow in _missing().items()
            for method in _QUANTITY
        ),
        *(
            line(method, words, flow, v.quality(method))
            for words, flow in _noisy().items()
            for method in (v.PLR, v.BQ)
        ),
    ),
    versus=(*((v.PNR, method) for method in _QUANTITY[1:]), (v.PLR, v.BQ)),
    by_default=False,
)
