"""HidE's diffusion: its steps, its noise, and the network that removes it (the paper's Figs. 6 and 7)."""

from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.parts.options import UNDER
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Part
from lichen_lab.benchmarks.study.part import lines

_METHODS: Final = (v.MMFEDE_HIDE, v.OURS)
NETWORKS: Final = {
    "CRA": {},
    "AE": {"denoiser": "ae"},
    "MLP": {"denoiser": "mlp"},
    "MHA": {"denoiser": "mha"},
}
"""The paper's name -> options; none are those of the main table, and make its run."""
SCALES: Final = {"1e-4": {}, "1e-2": {"noise_scale": 1e-2}, "1": {"noise_scale": 1.0}}
"""s -> options."""
STEPS: Final = Part(
    name="steps",
    place=12,
    title="steps of the diffusion",
    variants=lines(
        v.line, _METHODS, {f"{UNDER}, T = {steps}": {"steps": steps} for steps in (1, 2, 5, 10, 20)}
    ),
    by_default=False,
)
NOISE: Final = Part(
    name="noise",
    place=13,
    title="scale of the diffusion's noise",
    variants=lines(v.line, _METHODS, {f"{UNDER}, s = {scale}": of for scale, of in SCALES.items()}),
    by_default=False,
)
DENOISERS: Final = Part(
    name="denoisers",
    place=14,
    title="networks that remove the diffusion's noise",
    variants=lines(
        v.line,
        _METHODS,
        {f"{UNDER}, denoiser: {words}": of for words, of in NETWORKS.items()},
    ),
    by_default=False,
)
