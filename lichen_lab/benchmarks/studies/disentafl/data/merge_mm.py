"""MERGE-MM's shape: four sensors, three targets, two sources that share one sensor, thirteen kinds of device.

The paper has CMU-MOSEI (video, text, audio; sentiment, emotions) and Vehicle (audio, seismic). Here UCI-HAR's
phones (``body_acc``, ``body_gyro``, ``total_acc``; ``label``, the activity, and ``intensity``, a regression)
and SPAR's watches (``total_acc``, ``wrist_gyro``; ``exercise``). Both sources measure acceleration with
gravity, at another place of the body and in another movement: ``total_acc`` has two domains.

Each phone is a person's, each watch an arm of a person's. A share rho of devices has fewer sensors.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.disentafl.data import uci_har as phones
from lichen_lab.benchmarks.studies.disentafl.data.windows import seen_by, words
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from lichen_lab.simulation.data.access.split import complete
from lichen_lab.simulation.data.sets import spar, spar_windows, uci_har
from models.contract import FloatArray, Profile, WindowSet
from models.data.window_set import select
from protocol.errors import Misconfigured
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import LABEL, Modality, Target, Task

NAME: Final = "merge-mm"
RHO: Final = 2 / 3
TRAIN: Final = 48
TEST: Final = 60
INTENSITY: Final = "intensity"
EXERCISE: Final = "exercise"
_BODY: Final = "body_acc"
_GYRO: Final = "body_gyro"
_BOTH: Final = "total_acc"
_WRIST: Final = "wrist_gyro"


class DeviceKind(NamedTuple):
    """A kind of device, and whether it is one of those with fewer sensors."""

    profile: Profile
    fewer: bool = True


KINDS: Final = (
    DeviceKind(Profile((_BODY,), (LABEL,))),
    DeviceKind(Profile((_BOTH,), (LABEL,))),
    DeviceKind(Profile((_GYRO,), (LABEL,))),
    DeviceKind(Profile((_BODY, _BOTH), (LABEL,))),
    DeviceKind(Profile((_GYRO, _BOTH), (LABEL,))),
    DeviceKind(Profile((_BODY, _GYRO), (LABEL, INTENSITY))),
    DeviceKind(Profile((_GYRO,), (INTENSITY,))),
    DeviceKind(Profile((_BODY, _BOTH), (INTENSITY,))),
    DeviceKind(Profile((_GYRO, _BOTH), (LABEL, INTENSITY))),
    DeviceKind(Profile((_BODY, _GYRO, _BOTH), (INTENSITY,)), fewer=False),
    DeviceKind(Profile((_BOTH,), (EXERCISE,))),
    DeviceKind(Profile((_WRIST,), (EXERCISE,))),
    DeviceKind(Profile((_BOTH, _WRIST), (EXERCISE,)), fewer=False),
)
"""The paper's (Table 4), its video, text, audio and seismic read as the sensors here in this order: body_acc,
body_gyro, total_acc, wrist_gyro."""
_EACH_FEWER: Final = 3
_EACH_MORE: Final = 10


def task() -> Task:
    """The task; a run sets its network and options."""
    har = phones.task()
    gyro = next(m for m in spar_windows.MODALITIES if m.name == "gyroscope")
    return Task(
        name=NAME,
        method="disentafl",
        labels=uci_har.LABELS,
        modalities=(
            *har.modalities,
            Modality(name=_WRIST, channels=3, rate_hz=spar.RATE_HZ, unit=gyro.unit, scale=gyro.scale),
        ),
        targets=(har.target(INTENSITY), Target(name=EXERCISE, labels=spar_windows.LABELS)),
        window=har.window,
        rounds=Rounds(min_windows=1),
    )


def profiles(rho: float) -> list[Profile]:
    """Those of the devices: ``3 rho`` of each kind with fewer sensors, ``10 (1 - rho)`` of each other kind.

    Raises:
        Misconfigured: rho is no share.
    """
    if not 0 <= rho <= 1:
        raise Misconfigured(f"{NAME}: rho is the share of devices with fewer sensors, 0 to 1, not {rho}")
    counts = {True: round(_EACH_FEWER * rho), False: round(_EACH_MORE * (1 - rho))}
    return [kind.profile for kind in KINDS for _ in range(counts[kind.fewer])]


def build(
    seed: int, *, train: int = TRAIN, test: int = TEST, rho: float = RHO, each: int | None = None
) -> TargetFleet:
    """Build the fleet.

    Args:
        seed: of the devices' people, arms and windows.
        train: a device's training windows, from the first half of its windows of each class.
        test: maximum of its test windows, from the second half.
        rho: sets how many devices a kind has.
        each: devices of every kind, whatever rho.

    Raises:
        Misconfigured: a data set is not here, there are too few people, or rho is no share.
    """
    rng = np.random.default_rng([seed, 11])
    wanted = profiles(rho) if each is None else [kind.profile for kind in KINDS for _ in range(each)]
    learned, sources = task(), {False: _phones(), True: _watches()}
    for watch, found in sources.items():
        asked = sum(_watch(profile) == watch for profile in wanted)
        if asked > len(found):
            what = "watches" if watch else "phones"
            raise Misconfigured(f"{NAME}: {asked} {what} asked for, and data of {len(found)}")
    order = {watch: iter(rng.permutation(len(found)).tolist()) for watch, found in sources.items()}
    members = []
    for at, profile in enumerate(wanted):
        watch = _watch(profile)
        own, y_B = sources[watch][next(order[watch])]
        first, last = (
            seen_by(learned, profile, select(own, np.sort(rng.permutation(half)[:count])))
            for half, count in zip(phones.halves(y_B), (train, test), strict=True)
        )
        members.append(TargetDevice(f"d{at:02d}", words(profile), profile, first, last))
    return TargetFleet(NAME, learned, tuple(members))


def _watch(profile: Profile) -> bool:
    return EXERCISE in profile.targets


def _phones() -> list[tuple[WindowSet, NDArray[np.int64]]]:
    """Each person's windows, with their classes."""
    split = phones.everybody()
    made = []
    for person in np.unique(split.person_B).tolist():
        own = split.of_person(person).windows
        silent_B = np.full(len(own), np.nan, np.float32)
        targets = {INTENSITY: own.targets[INTENSITY], EXERCISE: silent_B}
        x = {name: own.x[name] for name in (_BODY, _GYRO, _BOTH)}
        made.append((_whole(x, own.y_B, targets), own.y_B))
    return made


def _watches() -> list[tuple[WindowSet, NDArray[np.int64]]]:
    """The windows of each person's arm, with their classes."""
    by_arm: dict[tuple[int, int], list[spar.Series]] = {}
    for one in spar_windows.series():
        by_arm.setdefault((one.person, one.side), []).append(one)
    made = []
    for _, series in sorted(by_arm.items()):
        own = spar_windows.cut(spar.on_one_wrist(series)).windows
        silent_B = np.full(len(own), np.nan, np.float32)
        targets = {INTENSITY: silent_B, EXERCISE: own.y_B.astype(np.float32)}
        x = {_BOTH: own.x["accelerometer"], _WRIST: own.x["gyroscope"]}
        made.append((_whole(x, np.full(len(own), -1, np.int64), targets), own.y_B))
    return made


def _whole(x: dict[str, FloatArray], y_B: NDArray[np.int64], targets: dict[str, FloatArray]) -> WindowSet:
    """Windows of the whole task: zeros where a source has no such sensor."""
    learned = task()
    nothing = {
        m.name: np.zeros((len(y_B), m.channels, learned.samples(m.name)), np.float32)
        for m in learned.modalities
        if m.name not in x
    }
    return complete({m.name: (x | nothing)[m.name] for m in learned.modalities}, y_B, targets)
