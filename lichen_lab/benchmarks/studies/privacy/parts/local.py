"""Local differential privacy of training: accuracy against epsilon, and how the recipe was chosen."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.privacy import variants as v
from lichen_lab.benchmarks.studies.privacy.variants import Line, Part, line

UNDER: Final = "21 devices, a person each"
PLAIN: Final = "without protection"
NOISE: Final[Mapping[str, float]] = {
    f"noise {multiplier:g}": multiplier for multiplier in (0.5, 1.0, 2.0, 4.0)
}
SETTING: Final[Mapping[str, Any]] = {"rate": 1.0, "rounds": 40, "delta": 1e-5}
LRS: Final = (0.03, 0.1, 0.3, 1.0)
CHOSEN: Final[Mapping[str, float]] = {
    PLAIN: 0.1,
    "noise 0.5": 1.0,
    "noise 1": 1.0,
    "noise 2": 0.3,
    "noise 4": 0.3,
}
"""Title -> learning rate, by ``local_tune``; noise of 0.5 and 2, which it has not, have their neighbour's."""


def _line(title: str, lr: float, under: str, *, tuning: bool = False) -> Line:
    config: dict[str, Any] = {**v.TRAINING, "lr": lr}
    setting: dict[str, Any] = {**SETTING, "config": config, "local_noise": NOISE.get(title, 0.0)}
    return line(title, 0.0, under, tuning=tuning, shards=1, **setting)


LOCAL: Final = Part(
    name="local",
    place=6,
    title="FedAvg under [local_privacy]: accuracy against epsilon, delta 1e-5",
    variants=tuple(_line(title, lr, UNDER) for title, lr in CHOSEN.items()),
    versus=tuple((title, PLAIN) for title in NOISE),
    by_default=False,
)
TUNE: Final = Part(
    name="local_tune",
    title="learning rate of training with noise, on people who train",
    variants=tuple(
        _line(title, lr, f"lr {lr:g}", tuning=True) for title in (PLAIN, "noise 1", "noise 4") for lr in LRS
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
