"""A fleet beside central training: the same windows, network, rounds and seed, on all devices or on one."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lichen_lab.benchmarks.result import ResultRow, Say, row
from lichen_lab.simulation.training.runner import simulate
from models.contract import WindowSet
from models.data.window_set import concat
from protocol.tasks.task import Task

FLEET: Final = "fleet"
CENTRAL: Final = "central"
MARGIN: Final = "the fleet above central training, points"


@dataclass(frozen=True)
class TwoWays:
    """One repetition.

    Attributes:
        dataset: its title.
        setting: what the devices hold.
        task: with the seed.
        devices: by name.
        test: windows that no device has.
        at_once: how many devices of the fleet train as one computation.
    """

    dataset: str
    setting: str
    task: Task
    devices: Mapping[str, WindowSet]
    test: WindowSet
    at_once: int = 1


@dataclass(frozen=True)
class TwoScores:
    """Accuracy of both, in %; bytes up of a device in a round of the fleet."""

    of: TwoWays
    fleet: float
    central: float
    bytes_up: float
    seconds: float


def compared(cases: Iterable[Callable[[], TwoWays]], say: Say) -> Iterator[TwoScores]:
    """Train both ways, one case after the other; a case's windows are in memory while it runs."""
    for make in cases:
        case, began = make(), time.process_time()
        seed, rounds = case.task.seed, case.task.rounds.count
        say(f"{case.dataset}, {case.setting}, seed {seed}")
        ways = {FLEET: case.devices, CENTRAL: {CENTRAL: concat([*case.devices.values()])}}
        histories = {
            way: simulate(
                case.task,
                devices,
                case.test,
                seed,
                evaluate_every=rounds,
                devices_at_once=case.at_once if way == FLEET else 1,
            )
            for way, devices in ways.items()
        }
        reached = {}
        for way, history in histories.items():
            if history.evaluation is None:
                raise RuntimeError(f"{way}: the last version was not evaluated")
            reached[way] = 100 * history.evaluation.metrics["accuracy"]
        up = histories[FLEET].bytes_up / (rounds * len(case.devices))
        say(f"fleet {reached[FLEET]:.1f} %, central {reached[CENTRAL]:.1f} %")
        yield TwoScores(
            replace(case, devices={}), reached[FLEET], reached[CENTRAL], up, time.process_time() - began
        )


def rows_of(scores: Iterable[TwoScores], accuracy: str) -> list[ResultRow]:
    """Mean and spread of both, their paired margin, and bytes; by data set and setting."""
    grouped: dict[tuple[str, str], list[TwoScores]] = {}
    for one in scores:
        grouped.setdefault((one.of.dataset, one.of.setting), []).append(one)
    rows = []
    for (dataset, setting), runs in grouped.items():
        seconds = sum(one.seconds for one in runs)
        for method, metric, values in (
            (FLEET, accuracy, [one.fleet for one in runs]),
            (CENTRAL, accuracy, [one.central for one in runs]),
            (FLEET, MARGIN, [one.fleet - one.central for one in runs]),
            (FLEET, "bytes up, a device in a round", [one.bytes_up for one in runs]),
        ):
            rows.append(row(dataset, method, setting, metric, values, seconds=seconds))
    return rows
