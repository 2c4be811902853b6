"""Settings, conditions and outcomes of the study's runs; they can pass through JSON and between processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from lichen_lab.benchmarks.study import run_spec

UCI_HAR: Final = "uci-har"
SPAR: Final = "spar"
HALVES: Final = "uci-har-halves"
CANARIES: Final = "canaries"
DATASETS: Final[Mapping[str, str]] = {
    UCI_HAR: "UCI-HAR",
    SPAR: "SPAR",
    HALVES: "UCI-HAR, some windows left out",
    CANARIES: "made-up updates",
}
"""Name of a fleet -> the data set's title."""
FEDAVG: Final = "fedavg"
CANARY: Final = "canary"
MODEL: Final = "membership-model"
UPDATE: Final = "membership-update"
PROTOTYPES: Final = "membership-prototypes"
INVERSION: Final = "inversion"


@dataclass(frozen=True)
class Shards:
    """How people become devices: each person's windows are dealt to ``shards`` devices at random.

    Without people (``canaries``) it is the number of devices.
    """

    shards: int = 20


@dataclass(frozen=True)
class PrivacySetting:
    """The training and its protection.

    Attributes:
        rounds: of the fleet.
        rate: share of the devices that take part in a round; by chance, each by itself. For canaries 1 is
            without sampling.
        noise_multiplier: of ``[privacy]``; 0: no table, so neither noise nor clip.
        clip: of ``[privacy]``, or of ``[local_privacy]``.
        delta: of the same.
        local_noise: noise multiplier of ``[local_privacy]``; 0: no such table.
        width: of the encoders, which have two convolutions.
        features: of each encoder, and of the head's inner layer.
        config: options of the method, as in a task's ``config`` table; or of the attack.
    """

    rounds: int = 60
    rate: float = 0.2
    noise_multiplier: float = 0.0
    clip: float = 1.0
    delta: float = 1e-3
    local_noise: float = 0.0
    width: int = 8
    features: int = 32
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PrivacyRun(run_spec.RunSpec[PrivacySetting, Shards]):
    """A run; ``fleet`` is a name of ``fleets``, ``method`` one of ``methods``."""

    setting: PrivacySetting = PrivacySetting()
    conditions: Shards = Shards()

    @property
    def dataset(self) -> str:
        """The data set's title."""
        return DATASETS[self.fleet]

    def tiny(self) -> Self:
        """Two rounds of two devices a person, with few windows."""
        return replace(
            self,
            setting=replace(self.setting, rounds=2),
            conditions=replace(self.conditions, shards=2),
            small=True,
        )


@dataclass(frozen=True)
class PrivacyOutcome(run_spec.RunOutcome):
    """Outcome of a run; its seconds are CPU seconds.

    Attributes:
        accuracy: of the last version on people whom no device met, in %; None if none was evaluated.
        macro_f1: mean F1 over the classes, in %.
        epsilon: of the account, with the help of chance; None without protection.
        epsilon_of_seen: the same against those who see who was asked.
        epsilon_of_window: of a window, by the devices' own accounts, the largest of them; None without
            ``[local_privacy]``.
        epsilon_of_moment: of a moment of the streams, likewise.
        devices: of the fleet.
        parameters: values of the model.
        noise_share: norm of the noise of a round's mean, relative to the clip; 0 without protection.
        taken: mean number of devices in a round.
        refused: number of refused updates and of devices without an update.
        attack: figure -> value, of an attack.
    """

    accuracy: float | None = None
    macro_f1: float | None = None
    epsilon: float | None = None
    epsilon_of_seen: float | None = None
    epsilon_of_window: float | None = None
    epsilon_of_moment: float | None = None
    devices: int = 0
    parameters: int = 0
    noise_share: float = 0.0
    taken: float = 0.0
    refused: int = 0
    attack: dict[str, float] = field(default_factory=dict)
