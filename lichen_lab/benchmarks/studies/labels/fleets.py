"""People of a fleet, and their windows, cut and judged by the agent's own code. Torch-free.

A person's recording is a number of pieces of one activity each. The first ``_EARLY`` of each piece is the
time in which the device collects candidates, the rest is the device's later windows: none overlaps another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.benchmarks.studies.labels.settings import SPAR, UCI_HAR, PeopleConditions
from lichen_lab.benchmarks.support.quality_streams import runs_of
from lichen_lab.simulation.data.sensor_faults import FaultPlan, inject, modalities_of, plan_faults
from lichen_lab.simulation.data.sets import spar, spar_windows, uci_har
from lichen_lab.simulation.data.spar_fleet import UNSEEN
from lichen_lab.simulation.data.streams import rng_of
from models.contract import WindowSet
from models.data.streams.recording import Recording, Stream
from models.data.window_set import concat, select
from protocol.tasks.links import Uplink
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

_STRIDE: Final = 64
_EARLY: Final = 0.7
_PAUSE_S: Final = 1.28
_PEOPLE: Final = 401
_UNEVEN: Final = 402
_FEW: Final = 0.15
"""Share that is left of a class that happens seldom."""
_FAULTS: Final = FaultPlan(
    outage_time=0.0,
    noise_time=0.25,
    noise_modality="gyroscope",
    snr_db=0.0,
    stuck_time=0.25,
    stuck_modality="accelerometer",
)


@dataclass(frozen=True)
class LabelData:
    """A data set.

    Attributes:
        labels: classes.
        modalities: three axes each, 50 Hz.
        series: pieces of all people.
        test_people: evaluate the tables; no other run has a window of them.
    """

    labels: tuple[str, ...]
    modalities: tuple[Modality, ...]
    series: Callable[[], tuple[spar.Series, ...]]
    test_people: tuple[int, ...]


def _uci_har() -> tuple[spar.Series, ...]:
    """UCI-HAR's windows joined into pieces of one activity."""
    found = []
    for part in (uci_har.load("train"), uci_har.load("test")):
        x_BCT = np.concatenate([*part.windows.x.values()], axis=1)
        both_B2 = np.stack([part.person_B, part.windows.y_B], axis=1)
        starts = np.flatnonzero((both_B2[1:] != both_B2[:-1]).any(axis=1)) + 1
        for at in np.split(np.arange(len(part)), starts):
            person, label = (int(value) for value in both_B2[at[0]])
            found += [spar.Series(person, 0, label, x_TC) for x_TC in runs_of(x_BCT[at])]
    return tuple(found)


def _spar() -> tuple[spar.Series, ...]:
    return tuple(spar.on_one_wrist(spar_windows.series()))


DATA: Final[Mapping[str, LabelData]] = {
    SPAR: LabelData(spar.LABELS, spar.MODALITIES, _spar, UNSEEN),
    UCI_HAR: LabelData(uci_har.LABELS, uci_har.MODALITIES, _uci_har, uci_har.TEST_PEOPLE),
}
_TUNING_TEST: Final = {SPAR: 1, UCI_HAR: 5}
"""People who evaluate when options are chosen; none of them is in ``test_people``."""


@dataclass(frozen=True)
class DevicePeople:
    """Who starts, who wears a device, who evaluates: three sets without a person in two of them."""

    start: tuple[int, ...]
    devices: tuple[int, ...]
    test: tuple[int, ...]


@dataclass(frozen=True)
class LabelFleet:
    """The windows of a run, all with their true label.

    Attributes:
        task: names, shapes and network.
        start: train the start model.
        pools: candidates of each device, in the order of time.
        later: of each device.
        test: of people whom no device met.
        people: who is who.
        faulty: number of the first devices whose sensors are faulty.
    """

    task: Task
    start: WindowSet
    pools: tuple[WindowSet, ...]
    later: tuple[WindowSet, ...]
    test: WindowSet
    people: DevicePeople
    faulty: int = 0


def task_of(name: str) -> Task:
    """The task of a data set: two small convolutional encoders."""
    data = DATA[name]
    encoder = Encoder(kind="cnn1d", width=16, depth=3)
    return Task(
        name=name,
        method="qqr",
        labels=data.labels,
        modalities=data.modalities,
        window=Window(length_s=2.56, stride_s=1.28),
        network=Network(
            encoders={one.name: encoder for one in data.modalities}, feature_dim=64, hidden_dim=64
        ),
        rounds=Rounds(min_windows=1),
        uplink=Uplink(codec="int8", error_carry=True),
    )


def dealt(name: str, seed: int, conditions: PeopleConditions, *, tuning: bool) -> DevicePeople:
    """The people of a seed. The test people are the data set's; with ``tuning`` they are nowhere."""
    everyone = sorted({one.person for one in _series(name)} - set(DATA[name].test_people))
    order = rng_of(seed, _PEOPLE).permutation(everyone).tolist()
    test = DATA[name].test_people
    if tuning:
        test, order = tuple(order[: _TUNING_TEST[name]]), order[_TUNING_TEST[name] :]
    starting = order[: conditions.start_people]
    wearing = order[conditions.start_people :][: conditions.devices]
    return DevicePeople(tuple(starting), tuple(wearing), test)


def fleet(
    name: str, seed: int, conditions: PeopleConditions, *, tuning: bool = False, small: bool = False
) -> LabelFleet:
    """The windows of a run.

    Raises:
        Misconfigured: the data set is not here.
    """
    people = dealt(name, seed, conditions, tuning=tuning)
    if small:
        people = replace(people, test=people.test[:1])
    pools = []
    for place, person in enumerate(people.devices):
        faulty = place < conditions.faulty
        pool = _early(name, person, seed if faulty else None)
        if conditions.uneven:
            pool = _unevenly(pool, len(DATA[name].labels), rng_of(seed, _UNEVEN, place))
        pools.append(pool)
    whole = [concat([_early(name, one, None), _late(name, one)]) for one in (*people.start, *people.test)]
    return LabelFleet(
        task_of(name),
        concat(whole[: len(people.start)]),
        tuple(pools),
        tuple(_late(name, person) for person in people.devices),
        concat(whole[len(people.start) :]),
        people,
        min(conditions.faulty, len(pools)),
    )


def _unevenly(pool: WindowSet, classes: int, rng: np.random.Generator) -> WindowSet:
    """A pool with few windows of half of the classes."""
    seldom = rng.permutation(classes)[: classes // 2]
    keep_B = ~np.isin(pool.y_B, seldom) | (rng.random(len(pool)) < _FEW)
    return select(pool, keep_B)


@lru_cache(maxsize=2)
def _series(name: str) -> tuple[spar.Series, ...]:
    return DATA[name].series()


@lru_cache(maxsize=64)
def _early(name: str, person: int, fault_seed: int | None) -> WindowSet:
    return _windows(
        name, [replace(one, values=one.values[: _cut(one)]) for one in _own(name, person)], fault_seed
    )


@lru_cache(maxsize=64)
def _late(name: str, person: int) -> WindowSet:
    return _windows(name, [replace(one, values=one.values[_cut(one) :]) for one in _own(name, person)], None)


def _own(name: str, person: int) -> list[spar.Series]:
    return spar.of_person(_series(name), person)


def _cut(one: spar.Series) -> int:
    return int(_EARLY * len(one.values) / _STRIDE) * _STRIDE


def _windows(name: str, pieces: Sequence[spar.Series], fault_seed: int | None) -> WindowSet:
    """The windows of one activity of these pieces, with their quality."""
    whole = [
        replace(one, values=one.values[:length])
        for one in pieces
        if (length := len(one.values) // _STRIDE * _STRIDE) >= 2 * _STRIDE
    ]
    recorded = spar.recording(whole, seed=0, pause_s=_PAUSE_S)
    if fault_seed is not None:
        recorded = inject(recorded, plan_faults(recorded, _FAULTS, fault_seed), fault_seed)
    streams = {m: Stream(recorded[f"{m}/t"], recorded[f"{m}/values"]) for m in modalities_of(recorded)}
    windows = windows_of_recording(
        task_of(name), Recording(streams, recorded["label/t"], recorded["label/values"])
    )
    return select(windows, (windows.y_B >= 0) & windows.present_BM.all(axis=1))
