"""Settings, conditions and outcomes of the study's runs; they can pass through JSON and between processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final, Self

from lichen_lab.benchmarks.study import run_spec
from lichen_lab.simulation.data.dataset_tasks import UCI_HAR, DatasetStudy, study
from lichen_lab.simulation.data.online_fleet import OnlineSetting
from models.methods.qqr import METHOD

EVALUATE_EVERY: Final = 4
"""Rounds between two evaluations."""
LAST: Final = 5
"""A run's accuracy is the mean of the evaluations in this many last rounds."""
_LAST_EVERY: Final = 2
_MEAN_AND_DEVIATION: Final = {"accelerometer": (0.307, 0.525), "gyroscope": (0.0, 0.354)}
"""Of all values of the official training people, in the sensors' units."""
STANDARDISED: Final = replace(
    UCI_HAR,
    name="uci-har-standardised",
    title="UCI-HAR, standardised",
    modalities=tuple(
        one.model_copy(update=dict(zip(("offset", "scale"), _MEAN_AND_DEVIATION[one.name], strict=True)))
        for one in UCI_HAR.modalities
    ),
)
"""The same windows; the network gets each sensor's values with mean 0 and deviation 1."""


def study_of(fleet: str) -> DatasetStudy:
    """The data set of a run, by the name of its fleet.

    Raises:
        Misconfigured: there is none of that name.
    """
    return STANDARDISED if fleet == STANDARDISED.name else study(fleet)


@dataclass(frozen=True)
class StreamConditions(OnlineSetting):
    """The fleet and its streams; ``devices`` train.

    Attributes:
        prototype_devices: number of devices that send only prototypes.
        unseen_class: a class on prototype devices that no training device has.
    """

    prototype_devices: int = 0
    unseen_class: int | None = None


@dataclass(frozen=True)
class QqrSetting:
    """The training.

    Attributes:
        config: options of the method, as in a task's ``config`` table; defaults are added. An unknown option
            raises ValidationError.
        codec: of the model's deltas in updates.
        modalities: of the task; empty: all of the data set.
        rounds: number of rounds.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    codec: str = "int8"
    modalities: tuple[str, ...] = ()
    rounds: int = 40

    def __post_init__(self) -> None:
        options = METHOD.config.model_validate(dict(self.config)).model_dump(mode="json")
        object.__setattr__(self, "config", options)


@dataclass(frozen=True)
class QqrRun(run_spec.RunSpec[QqrSetting, StreamConditions]):
    """A run; ``fleet`` is a data set for :func:`study_of`, ``probes`` are names of ``probes``."""

    fleet: str = "uci-har"
    method: str = METHOD.name
    setting: QqrSetting = QqrSetting()
    conditions: StreamConditions = StreamConditions()

    @property
    def dataset(self) -> str:
        """The data set's title."""
        return study_of(self.fleet).title

    def tiny(self) -> Self:
        """Two rounds of two devices."""
        flow = replace(self.conditions, devices=min(2, self.conditions.devices), pool=200, size=64, step=16)
        return replace(self, conditions=flow, setting=replace(self.setting, rounds=2), small=True)


@dataclass(frozen=True)
class QqrOutcome(run_spec.RunOutcome):
    """Outcome of a run; its seconds are CPU seconds.

    Attributes:
        curve: evaluated round -> accuracy (0 to 1) on the test windows.
        bytes_at: evaluated round -> payload bytes up so far, of all devices.
        bytes_up: part of the update -> payload bytes of the run.
        recall_K: recall of the final state by class.
        refused: number of refused updates and of devices without an update.
    """

    curve: dict[int, float]
    bytes_at: dict[int, int]
    bytes_up: dict[str, int]
    recall_K: list[float]
    refused: int

    @property
    def accuracy(self) -> float:
        """Mean over the evaluations of the last rounds, in %, to reduce the noise of single versions."""
        final = max(self.curve)
        return 100 * fmean(value for round_, value in self.curve.items() if round_ > final - LAST)


def evaluated(round_: int, rounds: int) -> bool:
    """Whether the version of that round is evaluated."""
    if round_ > rounds - LAST:
        return (rounds - round_) % _LAST_EVERY == 0
    return round_ % EVALUATE_EVERY == 0
