"""A run of a study: what it depends on, and what it leaves. Torch-free."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from lichen_lab.benchmarks.result import Say

T = TypeVar("T")
C = TypeVar("C")
F = TypeVar("F")


@dataclass(frozen=True)
class RunSpec(ABC, Generic[T, C]):
    """What one run depends on; survives JSON and a process boundary.

    Attributes:
        fleet: a name of the study's fleets.
        method: a name of the study's methods.
        setting: network, training and options.
        conditions: who has what.
        seed: of everything that is drawn.
        tuning: judge on what is held out of the training data, and do not look at the test data.
        small: little data: shows that it runs, not what it is worth.
        probes: what is asked of the run's end beyond its figures; it changes nothing of the run.
    """

    fleet: str
    method: str
    setting: T
    conditions: C
    seed: int = 0
    tuning: bool = False
    small: bool = False
    probes: tuple[str, ...] = ()

    @property
    def dataset(self) -> str:
        """The fleet, as rows name it."""
        return self.fleet

    def at(self, seed: int) -> Self:
        """The same with another seed."""
        return replace(self, seed=seed)

    def key(self) -> str:
        """The same for equal runs, whatever is asked of their ends."""
        whole = asdict(replace(self, probes=()))
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]

    @abstractmethod
    def tiny(self) -> Self:
        """The same with a few short rounds on little data."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What every run leaves; survives JSON.

    Attributes:
        seconds: that it took.
        probes: probe -> figure -> value.
    """

    seconds: float = 0.0
    probes: dict[str, dict[str, float]] = field(default_factory=dict)


S = TypeVar("S", bound=RunSpec[Any, Any])
O = TypeVar("O", bound=RunOutcome)  # noqa: E741 - an outcome, beside a setting
Run = Callable[[F, T, int, Say], O]
"""Makes a run: of the fleet, what it is given, the seed, and whom to tell how far it is."""


def quiet(_line: str) -> None:
    """Nobody wants to know how far a run is."""
