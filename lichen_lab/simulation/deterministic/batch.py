"""Runs many seeds on some processes, and adds their results up."""

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from lichen_lab.simulation.deterministic.cluster.plan import draw_cluster
from lichen_lab.simulation.deterministic.outcome import JournalBytes, WorldOutcome
from lichen_lab.simulation.deterministic.protected.plan import draw_private, draw_secure, draw_shared
from lichen_lab.simulation.deterministic.scenario.scenario import draw
from lichen_lab.simulation.deterministic.world import run_seed
from lichen_lab.simulation.secure_rounds.worlds import run_tables

_CHUNK: Final = 8
_KEPT: Final = 100
"""Failing seeds whose trace is kept."""


@dataclass
class Summary:
    """Results of all seeds that ran."""

    first: int
    seeds: int = 0
    steps: int = 0
    messages: int = 0
    moments: int = 0
    virtual_s: float = 0.0
    counted: int = 0
    lost: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    journal: JournalBytes = field(default_factory=JournalBytes)
    failed: list[WorldOutcome] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, outcome: WorldOutcome) -> None:
        """Add the result of a seed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.messages += outcome.messages
        self.moments += outcome.moments
        self.virtual_s += outcome.virtual_s
        self.counted += outcome.counted
        self.lost += outcome.lost
        self.faults += outcome.faults
        self.journal.add(outcome.journal)
        if outcome.violation and len(self.failed) < _KEPT:
            self.failed.append(outcome)

    def as_json(self) -> dict[str, Any]:
        """The summary as one JSON object."""
        return {
            "first_seed": self.first,
            "seeds": self.seeds,
            "violations": len(self.failed),
            "failed": [
                {"seed": one.seed, "violation": one.violation, "replay": replay(one), "trace": one.trace}
                for one in self.failed
            ],
            "steps": self.steps,
            "messages": self.messages,
            "crash_points": self.moments,
            "updates_counted": self.counted,
            "updates_rotten_and_reported": self.lost,
            "virtual_s": round(self.virtual_s, 1),
            "faults": dict(sorted(self.faults.items(), key=lambda item: -item[1])),
            "seconds": round(self.seconds, 1),
            **self._of_journal(),
        }

    def _of_journal(self) -> dict[str, Any]:
        """Of secure rounds alone."""
        if not self.journal.count:
            return {}
        masked, control = self.journal.deviations
        return {
            "journal_bytes": self.journal.count,
            "deviations": round(masked, 2),
            "deviations_of_control": round(control, 1),
        }


def replay(outcome: WorldOutcome) -> str:
    """The command that runs a seed again."""
    words = {WorldKind.PLAIN: "", WorldKind.SHARED: "--secure --private "}
    option = words.get(WorldKind(outcome.kind), f"--{outcome.kind.replace('_', '-')} ")
    return f"lichen simulate --faults {option}--seed {outcome.seed} --trace"


class WorldKind(StrEnum):
    """Kinds of worlds."""

    PLAIN = "plain"
    CLUSTER = "cluster"  # the coordinator is several processes
    SECURE = "secure"  # rounds are secure
    PRIVATE = "private"  # the task has a table [privacy]
    SHARED = "secure_private"  # both: devices add the noise
    TABLES = "secure_tables"  # the state tables of secure rounds, without daemons


_DRAWS: Final = {
    WorldKind.PLAIN: draw,
    WorldKind.CLUSTER: draw_cluster,
    WorldKind.SECURE: draw_secure,
    WorldKind.PRIVATE: draw_private,
    WorldKind.SHARED: draw_shared,
}


def run_kind(kind: WorldKind, seed: int, *, trace: Callable[[str], None] | None = None) -> WorldOutcome:
    """Run a seed of a kind; see :func:`run_seed`."""
    if kind is WorldKind.TABLES:
        return run_tables(seed, trace=trace)
    outcome = run_seed(seed, trace=trace, scenario=_DRAWS[kind](seed))
    outcome.kind = kind.value
    return outcome


def live_through(
    seeds: Iterable[int],
    workers: int,
    heard: Callable[[Summary], None],
    *,
    first: int,
    kind: WorldKind = WorldKind.PLAIN,
    keep_going: bool = True,
) -> Summary:
    """Run seeds.

    Args:
        seeds: which.
        workers: processes; 1 runs them in this one.
        heard: called after each seed.
        first: for the summary.
        kind: of all worlds.
        keep_going: do not stop at the first seed that fails.
    """
    summary, start = Summary(first), time.perf_counter()
    for outcome in _outcomes(seeds, workers, partial(run_kind, kind)):
        summary.add(outcome)
        summary.seconds = time.perf_counter() - start
        heard(summary)
        if summary.failed and not keep_going:
            break
    return summary


def _outcomes(
    seeds: Iterable[int], workers: int, run: Callable[[int], WorldOutcome]
) -> Iterator[WorldOutcome]:
    if workers == 1:
        _settle_in()
        yield from map(run, seeds)
        return
    # Fresh interpreters: without the imports and locks of this process.
    with multiprocessing.get_context("spawn").Pool(workers, _settle_in) as pool:
        yield from pool.imap_unordered(run, seeds, _CHUNK)


def _settle_in() -> None:
    """Freeze all imported objects, so that the garbage collector skips them."""
    gc.collect()
    gc.freeze()
