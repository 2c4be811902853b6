"""The input (spec) and the output (outcome) of a study's run. Torch-free."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Generic, Self, TypeVar

from lichen_lab.benchmarks.result import Say

T = TypeVar("T")
C = TypeVar("C")
F = TypeVar("F")


@dataclass(frozen=True)
class RunSpec(ABC, Generic[T, C]):
    """Everything that one run depends on; can pass through JSON and between processes.

    Attributes:
        fleet: name of a fleet of the study.
        method: name of a method of the study.
        setting: network, training and options.
        conditions: how data is spread over the devices.
        seed: of all random draws.
        tuning: evaluate on held-out training data instead of the test data.
        small: use little data: checks that the run works, not its figures.
        probes: further measurements of the final state; they do not change the run.
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
        """The fleet's name in rows."""
        return self.fleet

    def at(self, seed: int) -> Self:
        """The run with another seed."""
        return replace(self, seed=seed)

    def key(self) -> str:
        """Digest that is equal for equal runs, whatever their probes."""
        whole = asdict(replace(self, probes=()))
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]

    @abstractmethod
    def tiny(self) -> Self:
        """The run with a few short rounds on little data."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Output of every run; can pass through JSON.

    Attributes:
        seconds: duration of the run.
        probes: probe -> figure -> value.
    """

    seconds: float = 0.0
    probes: dict[str, dict[str, float]] = field(default_factory=dict)


S = TypeVar("S", bound=RunSpec[Any, Any])
O = TypeVar("O", bound=RunOutcome)  # noqa: E741 - an outcome, beside a setting
Run = Callable[[F, T, int, Say], O]
"""Makes a run from a fleet, a setting, a seed and a callable that takes the progress."""


def quiet(_line: str) -> None:
    """Discard progress lines."""


def play(fleet_of: Callable[..., F], module: str, one: S, tell: Say) -> tuple[F, Any]:
    """Make a run in this process; returns its fleet and its outcome.

    Args:
        fleet_of: ``fleet_of(name, seed, conditions, tuning=..., small=...)`` builds a fleet of the study.
        module: has ``RUNS``, the :data:`Run` of each method. Imported only here, because it imports torch.
        one: the run.
        tell: takes the progress.

    Raises:
        Misconfigured: no such fleet, method or option, or a data set is not here.
    """
    runs = import_module(module).RUNS
    fleet = _fleet(fleet_of, one.fleet, one.seed, one.conditions, one.tuning, one.small)
    return fleet, runs[one.method](fleet, one.setting, one.seed, tell)


@lru_cache(maxsize=2)
def _fleet(  # noqa: PLR0917 - fields of a spec
    fleet_of: Callable[..., F],
    name: str,
    seed: int,
    conditions: Any,
    tuning: bool,  # noqa: FBT001
    small: bool,  # noqa: FBT001
) -> F:
    """Build a fleet once for consecutive runs on it."""
    return fleet_of(name, seed, conditions, tuning=tuning, small=small)
