"""The fleets: people whose windows are dealt to devices, and people who evaluate. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.privacy.settings import CANARIES, DATASETS, Shards
from lichen_lab.simulation.data.access.split import complete
from lichen_lab.simulation.data.dataset_tasks import study
from models.contract import WindowSet
from models.data.window_set import check, empty, select
from protocol.errors import Misconfigured
from protocol.tasks.network import LINEAR, Network
from protocol.tasks.task import Modality, Task

_DEALT: Final = 501
_HELD: Final = 502
_HELD_PEOPLE: Final = 5
_SMALL: Final = 6
"""Windows of a device in a small run."""
_CLASSES: Final = ("a", "b", "c", "d")
_FEW: Final = 64
"""Canaries of a small run."""


@dataclass(frozen=True)
class PrivacyFleet:
    """Devices by name, the windows that evaluate, and a task of their data set with the usual network."""

    task: Task
    devices: Mapping[str, WindowSet]
    test: WindowSet


def fleet(
    name: str, seed: int, conditions: Shards, *, tuning: bool = False, small: bool = False
) -> PrivacyFleet:
    """A fleet of a data set.

    Args:
        name: of the data set.
        seed: deals the windows.
        conditions: number of devices.
        tuning: five of the people who train evaluate instead of the test people.
        small: few windows.

    Raises:
        Misconfigured: no such data set, or it is not here.
    """
    if name not in DATASETS:
        raise Misconfigured(f"no fleet {name!r}; there are {', '.join(DATASETS)}")
    if name == CANARIES:
        return canaries(_FEW if small else conditions.shards)
    chosen = study(name)
    task, part = chosen.task(), chosen.load("train", seed)
    train, person_B = check(part.windows, task, name), np.asarray(part.person_B)
    people = np.unique(person_B)
    if tuning:
        held = np.random.default_rng((seed, _HELD)).permutation(people)[:_HELD_PEOPLE]
        test = select(train, np.flatnonzero(np.isin(person_B, held)))
        people = np.setdiff1d(people, held)
    else:
        test = check(chosen.load("test", seed).windows, task, name)
    rng, devices = np.random.default_rng((seed, _DEALT)), dict[str, WindowSet]()
    for person in people.tolist():
        order = rng.permutation(np.flatnonzero(person_B == person))
        for number, at in enumerate(np.array_split(order, conditions.shards)):
            devices[f"p{person:02}-{number:02}"] = select(train, np.sort(at[:_SMALL] if small else at))
    return PrivacyFleet(task, devices, select(test, np.arange(0, len(test), 20)) if small else test)


def canaries(count: int) -> PrivacyFleet:
    """Devices for updates that are made up, and a linear network with a value for each of them."""
    features = -(-count // len(_CLASSES))
    vector = Modality(name="vector", kind="vector", channels=features, rate_hz=1.0)
    network = Network(kind=LINEAR, feature_dim=features)
    task = Task(name=CANARIES, labels=_CLASSES, modalities=(vector,), network=network)
    window = complete({"vector": np.zeros((1, features, 1), np.float32)}, np.zeros(1, np.int64))
    return PrivacyFleet(task, {f"canary{n:05}": window for n in range(count)}, empty(task))
