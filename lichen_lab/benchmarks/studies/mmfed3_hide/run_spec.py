"""One run of the study: what it depends on, and how it is made. Torch-free until it runs."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Self

from lichen_lab.benchmarks.studies.mmfed3_hide import fleets
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import Conditions, Fleet, Outcome, Setting, Tell


@dataclass(frozen=True)
class One:
    """A run.

    Attributes:
        graph: a name of :mod:`lichen_lab.benchmarks.studies.mmfed3_hide.fleets`.
        setting: training and options.
        conditions: who has which facts and features.
        seed: of the deal, the embeddings and the batches.
        tuning: judge on validation facts, and do not look at the test facts.
        small: few entities: shows that it runs.
    """

    graph: str
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
            tell: is told how far it is.

        Raises:
            Misconfigured: no such graph or option, or a data set is not here.
        """
        from lichen_lab.benchmarks.studies.mmfed3_hide import federation  # noqa: PLC0415 - torch, only where runs are made

        fleet = _fleet(self.graph, self.seed, self.conditions, self.small)
        if self.tuning:
            judges = tuple(replace(judge, test_N3=judge.valid_N3) for judge in fleet.judges)
            fleet = replace(fleet, judges=judges)
        return federation.run(fleet, self.setting, self.seed, tell or _quiet)


def run(one: One) -> Outcome:
    """Make it, in whatever process this is; raises as :meth:`One.run`."""
    return one.run()


@lru_cache(maxsize=2)
def _fleet(name: str, seed: int, conditions: Conditions, small: bool) -> Fleet:  # noqa: FBT001 - a key of the cache
    """A graph is dealt once for the methods that follow each other on it."""
    return fleets.fleet(name, seed, conditions, small=small)


def _quiet(_line: str) -> None:
    pass
