"""A device's training speed: the product's client and PyKEEN's RotatE on the same graph; time of a run.

All of it on one thread, one after another, in one process. Imports torch when it runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Goal, ResultRow, Say, row
from lichen_lab.benchmarks.studies.mmfed3_hide import fleets, pykeen_side
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    GraphConditions,
    KnowledgeGraphFleet,
    MmFed3Setting,
)
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Part
from lichen_lab.simulation.training.device import Site

SPEED: Final = "triples/s"
TIMES: Final = "times PyKEEN's triples/s"
EPOCH: Final = "s for one epoch of the first client"
WHOLE_RUN: Final = "minutes of CPU, extrapolated: 30 rounds, 3 epochs, all clients"
METHODS: Final = (v.FEDE, v.MMFEDE, v.MMFEDE_HIDE, v.OURS)
OURS: Final = v.FEDE
"""The method that is compared with PyKEEN: structure alone, as there."""
ROUNDS: Final = 30
EPOCHS: Final = 3
_MINUTE_S: Final = 60.0


@dataclass(frozen=True)
class SpeedCase:
    """A graph to train on.

    Attributes:
        graph: a key of :data:`lichen_lab.benchmarks.studies.mmfed3_hide.fleets.ENTITIES`.
        dim: D.
        theirs: PyKEEN's way to train -> number of the graph's facts that it is timed on; the time per fact
            does not depend on it.
    """

    graph: str
    dim: int
    theirs: Mapping[str, int]

    @property
    def words(self) -> str:
        """The setting of its rows."""
        return f"one client, {self.dim}/{self.dim // 2}"


CASES: Final = (
    SpeedCase(fleets.BUSY, 64, {pykeen_side.SLCWA: 4096, pykeen_side.LCWA: 1024}),
    SpeedCase(fleets.WHOLE, 128, {pykeen_side.SLCWA: 2048}),
)
_QUICK: Final = SpeedCase(fleets.BUSY, 16, {pykeen_side.SLCWA: 512, pykeen_side.LCWA: 512})


def rows(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Rows of every graph.

    Raises:
        Misconfigured: the data set is not here.
    """
    from lichen_lab.simulation.training.workers import one_thread  # noqa: PLC0415 - torch

    if not pykeen_side.here():
        say("PyKEEN is not here, and not compared with: pip install 'lichen-lab[pykeen]'")
    with one_thread():
        if quick:
            fleet = fleets.fleet(_QUICK.graph, 0, GraphConditions(rate=v.RATE), small=True)
            return of(_QUICK, fleet, say, quick=True)
        return [
            each for case in CASES for each in of(case, fleets.fleet(case.graph, 0, GraphConditions()), say)
        ]


def of(case: SpeedCase, fleet: KnowledgeGraphFleet, say: Say, *, quick: bool = False) -> list[ResultRow]:
    """Rows of one graph: the product's methods, then PyKEEN, then the comparison."""
    under = case.words + (", quick" if quick else "")
    results: list[ResultRow] = []

    def add(name: str, metric: str, value: float) -> None:
        results.append(row(case.graph, name, under, metric, [value]))

    own: dict[str, float] = {}
    graphs = list(fleet.devices.values())
    for title in METHODS:
        say(f"{case.graph}, {title}: one epoch")
        seconds = epoch_s(fleet, title, case.dim)
        own[title] = len(graphs[0]) / seconds
        add(title, SPEED, own[title])
        add(title, EPOCH, seconds)
        all_s = seconds * EPOCHS * ROUNDS * sum(map(len, graphs)) / len(graphs[0])
        add(title, WHOLE_RUN, all_s / _MINUTE_S)
    theirs = _theirs(case, fleet, say)
    for way, speed in theirs.items():
        add(f"PyKEEN's RotatE, {way}", SPEED, speed)
    if theirs:
        add(OURS, TIMES, own[OURS] / max(theirs.values()))
    return results


def epoch_s(fleet: KnowledgeGraphFleet, title: str, dim: int) -> float:
    """Seconds of a whole one-epoch round of a device, after one that is not counted.

    Args:
        fleet: its first device trains.
        title: a method of the tables.
        dim: D.
    """
    from lichen_lab.benchmarks.studies.mmfed3_hide.federation import device_of  # noqa: PLC0415 - torch
    from lichen_lab.benchmarks.studies.mmfed3_hide.shared import task_of  # noqa: PLC0415 - torch

    own = v.spec(*v.PLACES[title]).setting
    setting: MmFed3Setting = replace(own, rounds=2, warmup=0, epochs=1, dim=dim)
    task = task_of(fleet, setting, 0)
    device, site = device_of(task, next(iter(fleet.devices)), 0, fleet), Site(task, 0)
    state = site.client.initial(task, 0)
    for round_ in (1, 2):
        site.deliver(device, state, round_)
    return device.train_s


def _theirs(case: SpeedCase, fleet: KnowledgeGraphFleet, say: Say) -> dict[str, float]:
    """PyKEEN's triples/s by way; empty if it is not installed."""
    if not pykeen_side.here():
        return {}
    graph, speeds = next(iter(fleet.devices.values())), {}
    shape = len(graph.entity_keys_E16), len(graph.relation_keys_R16)
    base = v.BASE[case.graph]
    for way, most in case.theirs.items():
        say(f"{case.graph}, PyKEEN's RotatE, {way}")
        order = np.random.default_rng(0).permutation(len(graph))[:most]
        speeds[way] = pykeen_side.triples_a_second(
            way,
            graph.triples_N3[order],
            shape,
            dim=case.dim,
            batch=base.batch // 2,  # facts: each gives two questions
            negatives=base.negatives,
        )
    return speeds


PART: Final = Part(
    name="throughput",
    place=6,
    title="triples a second of local training, beside PyKEEN's RotatE; and how long a whole run takes",
    computed=rows,
    goals=tuple(
        Goal(TIMES, 1.0, above=True, setting=case.words, method=OURS, dataset=case.graph) for case in CASES
    ),
)
