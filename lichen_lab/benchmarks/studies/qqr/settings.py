"""What one run depends on, and what it leaves: values that survive JSON and a process boundary."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Final, Self

from models.methods.qqr import METHOD

EVALUATE_EVERY: Final = 4
"""Rounds between two points of a curve."""
LAST: Final = 5
"""A run's figure is the mean of the evaluations in its last so many rounds."""
_LAST_EVERY: Final = 2


@dataclass(frozen=True)
class Flow:
    """The fleet, and how windows come to it (:class:`lichen_lab.simulation.data.streams.Evolving`).

    Attributes:
        devices: that train.
        alpha: of the Dirichlet shares of the classes in a pool.
        pool: windows a device will ever see.
        size: windows held at a time.
        step: new ones a round.
        missing_share: share of the windows that lack a modality in an affected round.
        affected_rounds: share of the rounds that are affected.
        noisy_rounds: share of the rounds in which one modality is noisy.
        snr_db: of that noise.
        prototype_devices: that send prototypes alone.
        unseen_class: a class that no training device holds; prototype devices do.
        test: judge on the first so many test windows of a seeded order; None: on all.
    """

    devices: int = 5
    alpha: float = 1.0
    pool: int = 2000
    size: int = 500
    step: int = 20
    missing_share: float = 0.0
    affected_rounds: float = 0.0
    noisy_rounds: float = 0.0
    snr_db: float = 10.0
    prototype_devices: int = 0
    unseen_class: int | None = None
    test: int | None = None


@dataclass(frozen=True)
class Setting:
    """One run.

    Attributes:
        dataset: a name of :mod:`lichen_lab.benchmarks.studies.qqr.studies`.
        flow: the fleet and its windows.
        config: options of the method, as in a task's ``config`` table.
        codec: of the model's deltas on the way up.
        modalities: the task has these alone; empty: all of the data set.
        rounds: of training.
        probes: names of :mod:`lichen_lab.benchmarks.studies.qqr.probes`, asked of the final state.
        seed: of partition, faults, initial model and batches.
    """

    dataset: str = "uci-har"
    flow: Flow = Flow()
    config: Mapping[str, Any] = field(default_factory=dict)
    codec: str = "int8"
    modalities: tuple[str, ...] = ()
    rounds: int = 40
    probes: tuple[str, ...] = ()
    seed: int = 0

    def at(self, seed: int) -> Self:
        """The same with another seed."""
        return replace(self, seed=seed)

    def key(self) -> str:
        """The same for settings that train the same: options by their values, probes left out.

        Raises:
            ValidationError: the method has no such option.
        """
        options = METHOD.config.model_validate(dict(self.config)).model_dump(mode="json")
        whole = {**asdict(replace(self, probes=())), "config": options}
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Outcome:
    """What a run left.

    Attributes:
        curve: evaluated round -> accuracy (0 to 1) on the test windows.
        bytes_at: evaluated round -> payload bytes sent up by all devices until then.
        bytes_up: the whole run's, by part of the update.
        recall_K: of the final state, by class.
        probes: probe -> figure -> value.
        refused: updates that were not taken, and devices that had nothing to send.
        seconds: CPU seconds of the run.
    """

    curve: dict[int, float]
    bytes_at: dict[int, int]
    bytes_up: dict[str, int]
    recall_K: list[float]
    probes: dict[str, dict[str, float]]
    refused: int
    seconds: float

    @property
    def accuracy(self) -> float:
        """Mean over the evaluations of the last rounds, in %: one version's luck counts less."""
        final = max(self.curve)
        return 100 * fmean(value for round_, value in self.curve.items() if round_ > final - LAST)

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Self:
        """From :func:`dataclasses.asdict` after JSON, which has no integer keys.

        Raises:
            KeyError: a field is not there.
        """
        values = {name: told[name] for name in cls.__dataclass_fields__}
        for name in ("curve", "bytes_at"):
            values[name] = {int(round_): value for round_, value in values[name].items()}
        return cls(**values)


def evaluated(round_: int, rounds: int) -> bool:
    """Whether the version after that round is judged."""
    if round_ > rounds - LAST:
        return (rounds - round_) % _LAST_EVERY == 0
    return round_ % EVALUATE_EVERY == 0
