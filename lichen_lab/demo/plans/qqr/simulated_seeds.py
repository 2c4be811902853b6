"""Side job: simulate the same people and faults over several seeds, to measure sharing and prototypes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lichen_lab.demo.core.results import spread
from lichen_lab.demo.core.side_jobs import lines, main
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar

FEDERATED: Final = "prototypes (PNR)"
ALONE: Final = "each device alone"
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {FEDERATED: {}, **spar_fleet.BASELINES}


@dataclass(frozen=True)
class SeedLine:
    """One run: the accuracy on unseen people."""

    seed: int
    variant: str
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class SeedSummary:
    """One variant over the seeds, and the margin of the fleet with prototypes over it, seed by seed.

    Accuracies and margins are shares, not percent; ``sd`` is the sample's (n - 1), 0 for one seed.
    """

    variant: str
    mean: float
    sd: float
    margin: float
    margin_sd: float
    seeds: int

    @property
    def clear(self) -> bool:
        """Whether the margin is outside its own spread; one seed shows none."""
        return self.seeds > 1 and abs(self.margin) >= self.margin_sd


def summarise(lines: Iterable[SeedLine]) -> list[SeedSummary]:
    """One row per variant. Margins are paired, over the seeds that both have finished."""
    by_variant: dict[str, dict[int, float]] = {}
    for line in lines:
        by_variant.setdefault(line.variant, {})[line.seed] = line.accuracy
    ours = by_variant.get(FEDERATED, {})
    rows = []
    for variant in (*VARIANTS, ALONE):
        theirs = by_variant.get(variant)
        shared = sorted(set(ours) & set(theirs or {}))
        if not theirs or not shared:
            continue
        mean, sd = spread(theirs.values())
        margin, margin_sd = spread(ours[seed] - theirs[seed] for seed in shared)
        rows.append(SeedSummary(variant, mean, sd, margin, margin_sd, len(theirs)))
    return rows


def read(path: Path) -> list[SeedLine]:
    """The complete lines so far."""
    return [SeedLine(**row) for row in lines(path)]


def results(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All seeds and variants of a job."""
    from lichen_lab.benchmarks.suite import spar as bench  # noqa: PLC0415 - the parent reads the results without torch

    for one in bench.study(spar.load(), job["seeds"], int(job["rounds"]), variants=VARIANTS):
        if one.condition == bench.ALL_SENSORS:
            yield vars(SeedLine(one.seed, one.variant, one.accuracy, one.seconds))


if __name__ == "__main__":
    main(results)
