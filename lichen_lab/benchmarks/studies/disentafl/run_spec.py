"""One run of the study: what it depends on, and how it is made. Torch-free until it runs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Self

from lichen_lab.benchmarks.studies.disentafl.data import fleets
from lichen_lab.benchmarks.studies.disentafl.names import OURS
from lichen_lab.benchmarks.studies.disentafl.settings import Fleet, Outcome, Run, Setting


@dataclass(frozen=True)
class One:
    """A run.

    Attributes:
        fleet: a name of :mod:`lichen_lab.benchmarks.studies.disentafl.data.fleets`.
        method: :data:`OURS`, or a baseline's name.
        setting: network, training and options.
        seed: of the fleet, the model and the batches.
        tuning: judge on a part of the training windows, and do not look at the test windows.
        small: the small fleet: shows that it runs.
    """

    fleet: str
    method: str
    setting: Setting = field(default_factory=Setting)
    seed: int = 0
    tuning: bool = False
    small: bool = False

    def at(self, seed: int) -> Self:
        """The same with another seed."""
        return replace(self, seed=seed)

    def key(self) -> str:
        """The same for equal runs."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:24]


def run(one: One) -> Outcome:
    """Make it, in whatever process this is.

    Raises:
        Misconfigured: no such fleet, method or option, or a data set is not here.
    """
    fleet = _fleet(one.fleet, one.seed, one.tuning, one.small)
    outcome = _methods()[one.method](fleet, one.setting, one.seed, _quiet)
    return replace(outcome, kinds={member.name: member.kind for member in fleet.members})


def _methods() -> Mapping[str, Run]:
    from lichen_lab.benchmarks.studies.disentafl import federation  # noqa: PLC0415 - torch, only where runs are made
    from lichen_lab.benchmarks.studies.disentafl.baselines import RUNS  # noqa: PLC0415 - likewise

    return {OURS: federation.run, **RUNS}


@lru_cache(maxsize=2)
def _fleet(name: str, seed: int, tuning: bool, small: bool) -> Fleet:  # noqa: FBT001 - fields of One
    """A fleet is built once for the methods that follow each other on it."""
    whole = fleets.fleet(name, seed, small=small)
    return fleets.tuning(whole, seed) if tuning else whole


def _quiet(_line: str) -> None:
    pass
