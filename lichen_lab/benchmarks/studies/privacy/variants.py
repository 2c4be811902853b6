"""The protection, the training, the conditions: the table to change."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.studies.privacy.settings import (
    FEDAVG,
    UCI_HAR,
    PrivacyOutcome,
    PrivacyRun,
    PrivacySetting,
    Shards,
)
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

ACCURACY: Final = "accuracy on unmet people, %"
FIGURES: Final = (
    Figure[PrivacyOutcome](ACCURACY, lambda outcome: outcome.accuracy),
    Figure[PrivacyOutcome]("macro-F1 on unmet people, %", lambda outcome: outcome.macro_f1),
    Figure[PrivacyOutcome]("epsilon of the versions", lambda outcome: outcome.epsilon),
    Figure[PrivacyOutcome]("epsilon for who sees the offers", lambda outcome: outcome.epsilon_of_seen),
    Figure[PrivacyOutcome]("epsilon of a window", lambda outcome: outcome.epsilon_of_window),
    Figure[PrivacyOutcome]("epsilon of a moment", lambda outcome: outcome.epsilon_of_moment),
    Figure[PrivacyOutcome]("norm of the noise of a mean, in clips", lambda outcome: outcome.noise_share),
    Figure[PrivacyOutcome]("devices", lambda outcome: float(outcome.devices)),
    Figure[PrivacyOutcome]("devices in a round", lambda outcome: outcome.taken),
    Figure[PrivacyOutcome]("values of the model", lambda outcome: float(outcome.parameters)),
)
Line = StudyLine[PrivacyRun, PrivacyOutcome]
Results = PartResults[PrivacyRun, PrivacyOutcome]
Part = partial(StudyPart[PrivacyRun, PrivacyOutcome], figures=FIGURES)
"""A part with the study's figures."""

SEEDS: Final = 5
TUNING_SEEDS: Final = (100,)
"""No table uses these."""
TABLE: Final = "420 devices"
TABLE_OF_SPAR: Final = "280 devices"
NOISE: Final[Mapping[str, float]] = {
    "without protection": 0.0,
    "epsilon 8": 0.99,
    "epsilon 4": 1.50,
    "epsilon 2": 2.43,
    "epsilon 1": 4.15,
}
"""Title -> noise multiplier, for 60 rounds of one device in five and delta 0.001."""
PLAIN_LR: Final = 0.1
"""Without protection a smaller step is better (part ``central_tune``)."""
TRAINING: Final[Mapping[str, Any]] = {"epochs": 1, "batch": 32, "lr": 0.3}


def line(
    title: str,
    noise: float,
    under: str = TABLE,
    *,
    tuning: bool = False,
    fleet: str = UCI_HAR,
    shards: int = 20,
    **setting: Any,
) -> Line:
    """A line: its title, the noise, the conditions in words, the data set, and what the conditions change."""
    training = TRAINING if noise else {**TRAINING, "lr": PLAIN_LR}
    options = {"config": training, "noise_multiplier": noise, **setting}
    return Line(
        title, PrivacyRun(fleet, FEDAVG, PrivacySetting(**options), Shards(shards), tuning=tuning), under
    )
