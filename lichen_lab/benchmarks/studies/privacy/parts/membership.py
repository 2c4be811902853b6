"""Who was in the training: attacks on prototypes, updates and the exported model."""

from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.studies.privacy.settings import (
    HALVES,
    MODEL,
    PROTOTYPES,
    UPDATE,
    PrivacyOutcome,
    PrivacyRun,
    PrivacySetting,
    Shards,
)
from lichen_lab.benchmarks.studies.privacy.variants import Line
from lichen_lab.benchmarks.study.part import Figure, Part

SEEDS: Final = (0, 1, 2)
_MODEL: Final = "the exported model"
_ONE: Final = "the update of one device"
_MEAN: Final = "the mean of a round"
_PROTOTYPE: Final = "prototypes of one device"
_NOISE: Final = 0.9
_TRAINING: Final = {"epochs": 5, "batch": 32, "lr": 0.1}
_STEP: Final = {"epochs": 1, "batch": 32, "lr": 0.1}
FIGURES: Final = {
    "loss auc": "AUC by loss, %",
    "loss tpr": "found by loss at 1 % false alarms, %",
    "ratio auc": "AUC by likelihood ratio, %",
    "ratio tpr": "found by likelihood ratio at 1 % false alarms, %",
    "gradient auc": "AUC by gradient, %",
    "gradient tpr": "found by gradient at 1 % false alarms, %",
    "members": "accuracy on members, %",
    "others": "accuracy on the others, %",
    "windows": "windows of a prototype",
}


def _attack(key: str, outcome: PrivacyOutcome) -> float | None:
    return outcome.attack.get(key)


def _line(title: str, under: str, method: str, shards: int, **setting: Any) -> Line:
    return Line(title, PrivacyRun(HALVES, method, PrivacySetting(**setting), Shards(shards)), under)


def _update(title: str, under: str, seen: str, noise: float) -> Line:
    options = {"rounds": 10, "noise_multiplier": noise, "config": {**_STEP, "seen": seen}}
    return _line(title, under, UPDATE, 20, **options)


def _prototypes(title: str, shards: int, **options: Any) -> Line:
    under = _PROTOTYPE if shards == 1 else f"{_PROTOTYPE}, few windows"
    config = {"batch": 32, "lr": 0.1, **options}
    return _line(title, under, PROTOTYPES, shards, rounds=15, rate=1.0, config=config)


_part = partial(
    Part[PrivacyRun, PrivacyOutcome],
    figures=(
        *(Figure[PrivacyOutcome](metric, partial(_attack, key)) for key, metric in FIGURES.items()),
        Figure[PrivacyOutcome]("accuracy on unmet people, %", lambda outcome: outcome.accuracy),
        Figure[PrivacyOutcome]("epsilon", lambda outcome: outcome.epsilon),
        Figure[PrivacyOutcome]("CPU seconds of a run", lambda outcome: outcome.seconds),
    ),
    seeds=SEEDS,
)
MEMBERSHIP: Final = _part(
    name="membership",
    place=3,
    title="whose windows are in updates and prototypes, by attack; a guess is 50 % AUC, and 1 % found",
    variants=(
        _update("without protection", _ONE, "one", 0.0),
        _update("clip alone", _ONE, "one", _NOISE),
        _update("without protection", _MEAN, "mean", 0.0),
        _update("clip and noise", _MEAN, "mean", _NOISE),
        _prototypes("without protection", 1),
        _prototypes("noise 1", 1, dp_noise=1.0),
        _prototypes("without protection", 5),
        _prototypes("noise 1", 5, dp_noise=1.0),
    ),
)
MEMBERSHIP_MODEL: Final = _part(
    name="membership_model",
    place=4,
    title="who was in the training, by the exported model; a guess is 50 % AUC, and 1 % found",
    variants=(
        _line("without protection", _MODEL, MODEL, 10, rounds=30, config=_TRAINING),
        _line("clip and noise", _MODEL, MODEL, 10, rounds=30, noise_multiplier=_NOISE, config=_TRAINING),
    ),
)
