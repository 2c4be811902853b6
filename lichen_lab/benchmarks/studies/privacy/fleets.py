"""The fleets: people whose windows are dealt to devices, and people who evaluate. Torch-free.

For attacks on membership (``uci-har-halves``) every second window that overlaps no other trains, or is left
out; a coin decides which of two neighbours does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.privacy.settings import CANARIES, DATASETS, HALVES, UCI_HAR, Shards
from lichen_lab.simulation.data.access.split import DataSplit, complete
from lichen_lab.simulation.data.dataset_tasks import study
from models.contract import WindowSet
from models.data.window_set import check, empty, select
from protocol.errors import Misconfigured
from protocol.tasks.network import LINEAR, Network
from protocol.tasks.task import Modality, Task

_DEALT: Final = 501
_HELD: Final = 502
_HALVED: Final = 504
_HELD_PEOPLE: Final = 5
_SMALL: Final = 6
"""Windows of a device in a small run."""
_CLASSES: Final = ("a", "b", "c", "d")
_FEW: Final = 64
"""Canaries of a small run."""


@dataclass(frozen=True)
class PrivacyFleet:
    """Devices by name, the windows that evaluate, and a task of their data set with the usual network.

    Attributes:
        others: for each device, as many windows of the same person that never train.
        person_B: of the windows that evaluate.
    """

    task: Task
    devices: Mapping[str, WindowSet]
    test: WindowSet
    others: Mapping[str, WindowSet] = field(default_factory=dict)
    person_B: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


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
    if name == HALVES:
        return halves(seed, conditions, small=small)
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


def halves(seed: int, conditions: Shards, *, small: bool = False) -> PrivacyFleet:
    """Devices with some of UCI-HAR's windows, and as many others of the same people and times.

    Raises:
        Misconfigured: the data set is not here.
    """
    chosen = study(UCI_HAR)
    task, part, judged = chosen.task(), chosen.load("train", seed), chosen.load("test", seed)
    train, rng = check(part.windows, task, UCI_HAR), np.random.default_rng((seed, _HALVED))
    pairs_N2 = rng.permuted(pairs(part), axis=1)
    devices, others = dict[str, WindowSet](), dict[str, WindowSet]()
    person_N = part.person_B[pairs_N2[:, 0]]
    for person in np.unique(person_N)[: 3 if small else None].tolist():
        own_N2 = rng.permutation(pairs_N2[person_N == person])
        for number, some_N2 in enumerate(np.array_split(own_N2, conditions.shards)):
            at_N2 = np.sort(some_N2[:_SMALL] if small else some_N2, axis=0)
            name = f"p{person:02}-{number:02}"
            devices[name], others[name] = (select(train, at_N2[:, side]) for side in range(2))
    step = 4 if small else 1
    test = select(check(judged.windows, task, UCI_HAR), np.arange(0, len(judged), step))
    return PrivacyFleet(task, devices, test, others, np.asarray(judged.person_B)[::step])


def pairs(part: DataSplit) -> NDArray[np.int64]:
    """Neighbours in time that share no sample, (N, 2); no two windows of all pairs overlap.

    Consecutive windows overlap by half: of four the first and the third are a pair.
    """
    x_BCT = part.windows.x[next(iter(part.windows.x))]
    half = x_BCT.shape[2] // 2
    follows_B = np.isclose(x_BCT[:-1, :, half:], x_BCT[1:, :, :half]).all(axis=(1, 2))
    follows_B &= part.person_B[1:] == part.person_B[:-1]
    starts = np.flatnonzero(np.concatenate([[True], ~follows_B]))
    place_B = np.arange(len(part)) - np.repeat(starts, np.diff([*starts, len(part)]))
    first_N = np.flatnonzero(place_B % 4 == 0)
    first_N = first_N[first_N + 2 < len(part)]
    first_N = first_N[place_B[first_N + 2] == place_B[first_N] + 2]
    return np.stack([first_N, first_N + 2], axis=1)
