"""What sharing, and what prototypes, are worth on SPAR: people whom no device has met, sensors that fail.

The demo's devices, faults and network. Variants of one seed see the same people, faults, initial model and
order of samples, so margins are paired. Two settings: ``demo's people`` keeps who trains and who judges, and
changes the faults, the order of exercises and the initial model; ``people shuffled`` also deals the ten
people anew.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.data.streams import rng_of, without_modality
from lichen_lab.simulation.training.runner import each_alone, simulate
from models import registry
from models.contract import Blobs, WindowSet
from protocol.tasks.task import Task

PROTOTYPES: Final = "prototypes"
ALONE: Final = "each device alone"
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    PROTOTYPES: {},
    "prototypes, the paper's rule alone": {"pce_on_incomplete": False},
    **spar_fleet.BASELINES,
}
ALL_SENSORS: Final = "all sensors"
_ONE_OUT: Final = "one sensor out"
_ACCURACY: Final = "accuracy on unseen people, %"
_MARGIN: Final = "prototypes above it, points"
_ROUNDS: Final = spar_fleet.ROUNDS
_PURPOSE_TEST: Final = 1
_PURPOSE_PEOPLE: Final = 2


@dataclass(frozen=True)
class SparOutcome:
    """One run: accuracy (0 to 1) on unseen people under one condition of *their* sensors."""

    people: str
    seed: int
    variant: str
    condition: str
    accuracy: float
    seconds: float


def dealt(series: Sequence[spar.Series], seed: int) -> tuple[spar.Series, ...]:
    """The series with permuted person numbers: changes who trains and who tests."""
    numbers = rng_of(seed, _PURPOSE_PEOPLE).permutation(spar.PEOPLE)
    return tuple(replace(one, person=int(numbers[one.person - 1])) for one in series)


def study(
    series: Sequence[spar.Series],
    seeds: Iterable[int],
    rounds: int,
    say: Say = lambda _: None,
    *,
    shuffle_people: bool = False,
    variants: Mapping[str, Mapping[str, Any]] = VARIANTS,
) -> Iterator[SparOutcome]:
    """All variants and each device alone, for every seed.

    Args:
        series: all of SPAR.
        seeds: each is one repetition.
        rounds: of training.
        say: told what runs.
        shuffle_people: deal the people anew for each seed.
        variants: name -> options of the method, over the demo's.
    """
    people = "people shuffled" if shuffle_people else "demo's people"
    for seed in seeds:
        own = dealt(series, seed) if shuffle_people else tuple(series)
        base = spar_fleet.task(rounds, seed=seed)
        devices = spar_fleet.device_windows(base, own, seed)
        tests = _tests(spar_fleet.windows(base, spar_fleet.unseen(own)), seed)
        for variant, options in {**variants, ALONE: {}}.items():
            say(f"{people}, seed {seed}: {variant}")
            task, started = spar_fleet.task(rounds, config=options, seed=seed), time.perf_counter()
            if variant == ALONE:
                runs = [*each_alone(task, devices, None, seed, rounds=rounds).values()]
            else:
                runs = [simulate(task, devices, None, seed, rounds=rounds)]
            seconds = time.perf_counter() - started
            for condition, accuracy in _judged(task, [one.state for one in runs], tests).items():
                yield SparOutcome(people, seed, variant, condition, accuracy, seconds)


def _tests(clean: WindowSet, seed: int) -> dict[str, WindowSet]:
    """The unseen people's windows: whole, and with one of two sensors missing in each."""
    return {ALL_SENSORS: clean, _ONE_OUT: without_modality(clean, 1.0, rng_of(seed, _PURPOSE_TEST))}


def _judged(task: Task, states: Sequence[Blobs], tests: Mapping[str, WindowSet]) -> dict[str, float]:
    """Accuracy under each condition, mean over the states."""
    client = registry.method(task.method).client()
    return {
        condition: fmean(client.evaluate(task, windows, state).metrics["accuracy"] for state in states)
        for condition, windows in tests.items()
    }


def rows_of(outcomes: Iterable[SparOutcome]) -> list[ResultRow]:
    """Mean and spread of every variant, and the paired margin of prototypes over each other variant."""
    grouped: dict[tuple[str, str], dict[str, dict[int, SparOutcome]]] = {}
    for one in outcomes:
        by_variant = grouped.setdefault((one.people, one.condition), {})
        by_variant.setdefault(one.variant, {})[one.seed] = one
    rows = []
    for (people, condition), by_variant in grouped.items():
        setting, ours = f"{people}, {condition}", by_variant.get(PROTOTYPES, {})
        for variant, runs in by_variant.items():
            seconds = sum(one.seconds for one in runs.values())
            reached = [100 * one.accuracy for one in runs.values()]
            rows.append(row("SPAR", variant, setting, _ACCURACY, reached, seconds=seconds))
            paired = [
                100 * (ours[seed].accuracy - one.accuracy) for seed, one in runs.items() if seed in ours
            ]
            if variant != PROTOTYPES and paired:
                rows.append(row("SPAR", variant, setting, _MARGIN, paired, seconds=seconds))
    return rows


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three seeds in both settings; quick: one seed of the demo's people with a quarter of the rounds."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    series = spar.load()
    if quick:
        return rows_of(study(series, (0,), _ROUNDS // 4, say))
    return rows_of(
        one for deal in (False, True) for one in study(series, range(3), _ROUNDS, say, shuffle_people=deal)
    )


BENCH: Final = Bench(
    name="spar",
    run=run,
    goals=(Goal(_MARGIN, 0, above=True),),
)
