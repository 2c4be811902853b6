"""One run of the study: what it depends on, and how it is made. Torch-free until it runs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Self

from lichen_lab.benchmarks.studies.tactfl.data import fleets
from lichen_lab.benchmarks.studies.tactfl.names import OURS
from lichen_lab.benchmarks.studies.tactfl.settings import Conditions, Fleet, Outcome, Run, Setting, Tell


@dataclass(frozen=True)
class One:
    """A run.

    Attributes:
        fleet: a name of :mod:`lichen_lab.benchmarks.studies.tactfl.data.fleets`.
        method: :data:`OURS`, or a baseline's name.
        setting: network, training and options.
        conditions: who has which windows.
        seed: of the fleet, the model and the batches.
        tuning: judge on training people who are held out, and do not look at the test people.
        small: the small fleet: shows that it runs.
    """

    fleet: str
    method: str
    setting: Setting = field(default_factory=Setting)
    conditions: Conditions = field(default_factory=Conditions)
    seed: int = 0
    tuning: bool = False
    small: bool = False

    def at(self, seed: int) -> Self:
        """The same with another seed."""
        return replace(self, seed=seed)

    def key(self) -> str:
        """The same for equal runs."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:24]

    def run(self, tell: Tell | None = None) -> Outcome:
        """Make it, here and now.

        Args:
            tell: is told how far it is, and the warnings of a round.

        Raises:
            Misconfigured: no such fleet, method or option, or a data set is not here.
        """
        fleet = _fleet(self.fleet, self.seed, self.conditions, self.tuning, self.small)
        outcome = _methods()[self.method](fleet, self.setting, self.seed, tell or _quiet)
        return replace(outcome, kinds={member.name: member.kind for member in fleet.members})


def run(one: One) -> Outcome:
    """Make it, in whatever process this is; raises as :meth:`One.run`."""
    return one.run()


def _methods() -> Mapping[str, Run]:
    from lichen_lab.benchmarks.studies.tactfl import federation  # noqa: PLC0415 - torch, only where runs are made
    from lichen_lab.benchmarks.studies.tactfl.baselines import RUNS  # noqa: PLC0415 - likewise

    return {OURS: federation.run, **RUNS}


@lru_cache(maxsize=2)
def _fleet(
    name: str,
    seed: int,
    conditions: Conditions,
    tuning: bool,  # noqa: FBT001
    small: bool,  # noqa: FBT001
) -> Fleet:
    """A fleet is built once for the methods that follow each other on it."""
    return fleets.fleet(name, seed, conditions, tuning=tuning, small=small)


def _quiet(_line: str) -> None:
    pass
