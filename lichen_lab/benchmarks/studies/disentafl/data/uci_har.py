"""UCI-HAR xM: three sensor groups, three targets, eight kinds of device, a person each.

Inputs: the data set's signals ``body_acc`` (g, gravity removed by its authors), ``body_gyro`` (rad/s) and
``total_acc`` (g). Targets: ``label``, the six activities; ``gait``, four classes (sitting, standing and
laying count as still); ``intensity``, a regression: log10 of the root mean square, over a window's samples,
of the length of the angular velocity in rad/s (:func:`intensity`), which a device without gyroscope has to
infer from its other sensors. A device's windows are one person's, so domains differ; kinds differ in inputs
and targets.
"""

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.disentafl.data.windows import seen_by, words
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.sets import uci_har
from models.contract import FloatArray, Profile
from models.data.window_set import concat, select
from protocol.errors import Misconfigured
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import LABEL, Modality, Target, Task, Window

NAME: Final = "uci-har-xm"
EACH: Final = 3
TRAIN: Final = 48
TEST: Final = 96
GAITS: Final = ("still", "level", "upstairs", "downstairs")
_GAIT_OF: Final = np.array([1, 2, 3, 0, 0, 0])
_FLOOR: Final = 1e-3
_HEAD: Final = 0.5
_UNITS: Final = {"body_acc": "g", "body_gyro": "rad/s", "total_acc": "g"}
_SCALES: Final = {"body_acc": 0.15, "body_gyro": 0.35, "total_acc": 0.5}
PROFILES: Final = (
    Profile(("body_acc",), (LABEL,)),
    Profile(("body_gyro",), (LABEL,)),
    Profile(("body_gyro",), ("gait",)),
    Profile(("total_acc",), (LABEL, "intensity")),
    Profile(("body_acc",), ("gait", "intensity")),
    Profile(("body_gyro", "total_acc"), (LABEL, "gait")),
    Profile(("body_acc", "total_acc"), ("intensity",)),
    Profile(("body_acc", "body_gyro", "total_acc"), (LABEL, "gait", "intensity")),
)
"""The kinds of device."""


def task() -> Task:
    """The task; a run sets its network and options."""
    return Task(
        name=NAME,
        method="disentafl",
        labels=uci_har.LABELS,
        modalities=tuple(
            Modality(name=name, channels=3, rate_hz=uci_har.RATE_HZ, unit=_UNITS[name], scale=_SCALES[name])
            for name in uci_har.SIGNALS
        ),
        targets=(
            Target(name="gait", labels=GAITS),
            Target(name="intensity", kind="regression", unit="log10 rad/s", offset=-0.8, scale=0.75),
        ),
        window=Window(length_s=uci_har.WINDOW_S, stride_s=uci_har.WINDOW_S / 2),
        rounds=Rounds(min_windows=1),
    )


def intensity(gyro_BCT: FloatArray) -> FloatArray:
    """(B,) log10 sqrt(mean over time of |omega|^2 + 1e-6), omega (B, 3, T) in rad/s: at rest about -1.6."""
    square_B = np.square(gyro_BCT.astype(np.float64)).sum(axis=1).mean(axis=1)
    value_B: FloatArray = (0.5 * np.log10(square_B + _FLOOR**2)).astype(np.float32)
    return value_B


def build(seed: int, *, each: int = EACH, train: int = TRAIN, test: int = TEST) -> TargetFleet:
    """Build the fleet: ``each`` devices of a kind, each with a person of its own.

    Args:
        seed: of the persons of devices, and of their windows.
        each: devices of a kind; at most 3, there are 30 people.
        train: windows of a device, from the first half of a person's windows of each class.
        test: maximum, from the second half. None shares samples with a training window.

    Raises:
        Misconfigured: the data set is not here, or there are too few people.
    """
    rng = np.random.default_rng([seed, 2])
    profiles = [profile for profile in PROFILES for _ in range(each)]
    split = everybody()
    people = rng.permutation(np.unique(split.person_B))
    if len(people) < len(profiles):
        raise Misconfigured(f"{NAME}: {len(profiles)} devices of a person each, and {len(people)} people")
    learned = task()
    members = []
    for at, (profile, person) in enumerate(zip(profiles, people.tolist(), strict=False)):
        own = split.of_person(person).windows
        head, tail = halves(own.y_B)
        first, last = (
            seen_by(learned, profile, select(own, np.sort(rng.permutation(places)[:count])))
            for places, count in ((head, train), (tail, test))
        )
        members.append(TargetDevice(f"d{at:02d}", words(profile), profile, first, last))
    return TargetFleet(NAME, learned, tuple(members))


def halves(y_B: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the first and the last windows of each class, one left out between: neighbours overlap."""
    first: list[int] = []
    last: list[int] = []
    for value in np.unique(y_B):
        places = np.flatnonzero(y_B == value).tolist()
        cut = round(_HEAD * len(places))
        first += places[:cut]
        last += places[cut + 1 :]
    return np.array(first, np.int64), np.array(last, np.int64)


def everybody() -> DataSplit:
    """Both official parts, since a device knows its own person.

    Raises:
        Misconfigured: the data set is not here.
    """
    parts = [uci_har.signals(part) for part in ("train", "test")]
    whole = concat([part.windows for part in parts])
    targets = {
        "gait": _GAIT_OF[whole.y_B].astype(np.float32),
        "intensity": intensity(whole.x["body_gyro"]),
    }
    return DataSplit(replace(whole, targets=targets), np.concatenate([part.person_B for part in parts]))
