"""Settings, conditions and outcomes of the study's runs; they can pass through JSON and between processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from lichen_lab.benchmarks.study import run_spec

UNMET: Final = "people whom no device met"
OWN: Final = "the device's own later windows"
"""Evaluated for each device; the mean over the devices."""
SPAR: Final = "spar"
UCI_HAR: Final = "uci-har"
DATASETS: Final[Mapping[str, str]] = {SPAR: "SPAR", UCI_HAR: "UCI-HAR"}
"""Name of a fleet -> the data set's title."""


@dataclass(frozen=True)
class PeopleConditions:
    """Who wears the devices and what their sensors and their owners do.

    Attributes:
        start_people: number of people whose labelled windows train the start model.
        devices: number of devices, each with one person.
        faulty: number of devices with a faulty sensor: noise and stuck values in half of the time.
        uneven: whether a device's pool has few windows of half of its classes, as days have.
    """

    start_people: int = 1
    devices: int = 6
    faulty: int = 0
    uneven: bool = False


@dataclass(frozen=True)
class LabelSetting:
    """Which labels are given, and the training.

    Attributes:
        labels: on each device in the end; divided evenly over the sessions.
        sessions: times at which a person sits down and labels.
        rounds: of the fleet, divided evenly over the sessions, each part after its session.
        wrong: share of labels that are another class, drawn evenly.
        any_quality: whether windows of bad quality are candidates, too.
        start_rounds: rounds that train the start model; 0: no model predicts in the first session.
        config: options of the method, as in a task's ``config`` table.
        start_config: the same, of the start model.
    """

    labels: int = 30
    sessions: int = 5
    rounds: int = 10
    wrong: float = 0.0
    any_quality: bool = False
    start_rounds: int = 10
    config: Mapping[str, Any] = field(default_factory=dict)
    start_config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LabelRun(run_spec.RunSpec[LabelSetting, PeopleConditions]):
    """A run; ``fleet`` is a name of ``fleets``, ``method`` one of ``strategies``."""

    setting: LabelSetting = LabelSetting()
    conditions: PeopleConditions = PeopleConditions()

    @property
    def dataset(self) -> str:
        """The data set's title."""
        return DATASETS[self.fleet]

    def tiny(self) -> Self:
        """Two rounds and two sessions of two devices, with few labels."""
        few = replace(self.setting, labels=min(4, self.setting.labels), sessions=2, rounds=2)
        few = replace(few, start_rounds=min(1, few.start_rounds))
        people = replace(self.conditions, devices=2, faulty=min(1, self.conditions.faulty))
        return replace(self, setting=few, conditions=people, small=True)


@dataclass(frozen=True)
class LabelOutcome(run_spec.RunOutcome):
    """Outcome of a run; its seconds are CPU seconds.

    Attributes:
        accuracy: view -> accuracy of the last version, in %.
        macro_f1: view -> mean F1 over the classes, in %.
        start: view -> accuracy of the start model, in %; empty without one.
        given: labels that a device got, the mean over the devices.
        bad_share: share of these labels on windows with a modality of bad quality, in %, of the devices with
            a faulty sensor; 0 without such a device.
        classes: number of classes among a device's labels, the mean over the devices.
        refused: number of refused updates and of devices without an update.
    """

    accuracy: dict[str, float]
    macro_f1: dict[str, float]
    start: dict[str, float]
    given: float
    bad_share: float = 0.0
    classes: float = 0.0
    refused: int = 0
