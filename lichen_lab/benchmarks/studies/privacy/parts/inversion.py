"""Whether the windows of small updates can be computed back, with codec, clip and noise and without."""

from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.studies.privacy.settings import (
    HALVES,
    INVERSION,
    PrivacyOutcome,
    PrivacyRun,
    PrivacySetting,
    Shards,
)
from lichen_lab.benchmarks.studies.privacy.variants import Line
from lichen_lab.benchmarks.study.part import Figure, Part

SEEDS: Final = (0, 1, 2)
_ONE: Final = "one step on one window"
_FEW: Final = "one epoch on four windows"
_NOISE: Final = 0.9
FIGURES: Final = {
    "error": "error, in best constants",
    "nearest": "error of the nearest window of other people, in best constants",
    "better": "windows nearer than any of other people, %",
    "better_than_constant": "windows nearer than the best constant, %",
    "features": "error of the features, relative to their length",
    "features_of_others": "the same, of other people's mean features of the class",
}


def _attack(key: str, outcome: PrivacyOutcome) -> float | None:
    return outcome.attack.get(key)


def _line(title: str, under: str, windows: int, codec: str, noise: float = 0.0, **changes: Any) -> Line:
    config = {"epochs": 1, "batch": 2, "lr": 0.1, "windows": windows, "codec": codec, **changes}
    setting = PrivacySetting(rounds=1, noise_multiplier=noise, config=config)
    return Line(title, PrivacyRun(HALVES, INVERSION, setting, Shards(20)), under)


INVERTED: Final = Part[PrivacyRun, PrivacyOutcome](
    name="inversion",
    place=5,
    title="windows computed back from updates: their error, where the best constants have 1",
    figures=(
        *(Figure[PrivacyOutcome](metric, partial(_attack, key)) for key, metric in FIGURES.items()),
        Figure[PrivacyOutcome]("CPU seconds of a run", lambda outcome: outcome.seconds),
    ),
    variants=(
        _line("float32", _ONE, 1, "float32"),
        _line("int8", _ONE, 1, "int8"),
        _line("int8, clip and noise", _ONE, 1, "int8", _NOISE),
        _line("int8", _FEW, 4, "int8"),
        _line("int8, clip and noise", _FEW, 4, "int8", _NOISE),
    ),
    seeds=SEEDS,
)
