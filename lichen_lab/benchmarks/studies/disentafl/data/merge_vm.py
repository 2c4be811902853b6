"""MERGE-VM's shape: two sources without a sensor or a target in common, one domain (the paper's D = 1).

The paper has ModelNet40 and Vehicle; here UCI-HAR is in ModelNet40's place. Half of the devices observe
vehicles (``acoustic``, ``seismic``; target ``label``), with samples dealt at random; the other half are
people's phones (``body_acc``, ``body_gyro``; target ``activity``). In each half a share rho of devices has
one of the two sensors, half of these the first; the others have both. All have as many training windows.

Windows of both sources count as 2.56 s: Vehicle's 50 features have no time of their own.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.disentafl.data import uci_har as people
from lichen_lab.benchmarks.studies.disentafl.data import vehicle as nodes
from lichen_lab.benchmarks.studies.disentafl.data.windows import seen_by, stratified, words
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from lichen_lab.simulation.data.access.split import complete
from lichen_lab.simulation.data.sets import uci_har, vehicle
from models.contract import FloatArray, Profile, WindowSet
from models.data.window_set import select
from protocol.errors import Misconfigured
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import LABEL, Modality, Target, Task, Window

NAME: Final = "merge-vm"
ACTIVITY: Final = "activity"
DEVICES: Final = 12
"""Of each source."""
RHO: Final = 0.5
TRAIN: Final = 56
TEST: Final = 37
"""Windows of a device: of Vehicle's 93, three fifths train."""
_VEHICLE: Final = ("acoustic", "seismic")
_PHONE: Final = ("body_acc", "body_gyro")


def task() -> Task:
    """The task; a run sets its network and options."""
    phone = {m.name: m for m in people.task().modalities}
    rate_hz = vehicle.FEATURES / uci_har.WINDOW_S
    return Task(
        name=NAME,
        method="disentafl",
        labels=vehicle.LABELS,
        modalities=(
            *(Modality(name=name, channels=1, rate_hz=rate_hz) for name in _VEHICLE),
            *(phone[name] for name in _PHONE),
        ),
        targets=(Target(name=ACTIVITY, labels=uci_har.LABELS),),
        window=Window(length_s=uci_har.WINDOW_S, stride_s=uci_har.WINDOW_S / 2),
        rounds=Rounds(min_windows=1),
    )


def profiles(sensors: tuple[str, str], target: str, devices: int, rho: float) -> list[Profile]:
    """Those of a source's devices: a share ``rho`` has one of its two sensors.

    Raises:
        Misconfigured: rho is no share.
    """
    if not 0 <= rho <= 1:
        raise Misconfigured(f"{NAME}: rho is the share of devices with one sensor, 0 to 1, not {rho}")
    single = round(rho * devices)
    one = [Profile((sensors[number % 2],), (target,)) for number in range(single)]
    return [*one, *[Profile(sensors, (target,))] * (devices - single)]


def build(
    seed: int, *, devices: int = DEVICES, train: int = TRAIN, test: int = TEST, rho: float = RHO
) -> TargetFleet:
    """Build the fleet.

    Args:
        seed: of the devices' samples, sensors and people.
        devices: of each source; at most 30, the people.
        train: a device's training windows.
        test: maximum of its test windows.
        rho: share of the devices with one sensor.

    Raises:
        Misconfigured: a data set is not here, there are too few people or samples, or rho is no share.
    """
    rng = np.random.default_rng([seed, 9])
    learned = task()
    made = [
        *zip(profiles(_VEHICLE, LABEL, devices, rho), _vehicles(devices, train, test, rng), strict=True),
        *zip(profiles(_PHONE, ACTIVITY, devices, rho), _phones(devices, train, test, rng), strict=True),
    ]
    members = []
    for at, (profile, both) in enumerate(made):
        first, last = (seen_by(learned, profile, part) for part in both)
        members.append(TargetDevice(f"d{at:02d}", words(profile), profile, first, last))
    return TargetFleet(NAME, learned, tuple(members))


def _vehicles(
    devices: int, train: int, test: int, rng: np.random.Generator
) -> list[tuple[WindowSet, WindowSet]]:
    dealt = nodes.by_device(vehicle.load(), devices, rng, by_node=False)
    made = []
    for device in range(devices):
        mine = select(dealt.windows, np.flatnonzero(dealt.person_B == device)[: train + test])
        if len(mine) < train + test:
            raise Misconfigured(f"{NAME}: {len(mine)} samples of vehicles a device, of {train + test}")
        first_B = stratified(mine.y_B, train / (train + test), rng)
        made.append((_wide(select(mine, first_B)), _wide(select(mine, ~first_B))))
    return made


def _phones(
    devices: int, train: int, test: int, rng: np.random.Generator
) -> list[tuple[WindowSet, WindowSet]]:
    split = people.everybody()
    persons = rng.permutation(np.unique(split.person_B))[:devices]
    if len(persons) < devices:
        raise Misconfigured(f"{NAME}: {devices} phones of a person each, and {len(persons)} people")
    made = []
    for person in persons.tolist():
        own = split.of_person(person).windows
        head, tail = (rng.permutation(half) for half in people.halves(own.y_B))
        first, last = (select(own, np.sort(half)) for half in (head[:train], tail[:test]))
        made.append((_wide(first), _wide(last)))
    return made


def _wide(windows: WindowSet) -> WindowSet:
    """Windows of one source as windows of the whole task: zeros where it has no sensor."""
    learned, count = task(), len(windows)
    x: dict[str, FloatArray] = {
        m.name: windows.x.get(m.name, np.zeros((count, m.channels, learned.samples(m.name)), np.float32))
        for m in learned.modalities
    }
    if set(_VEHICLE) <= windows.x.keys():
        return complete(x, windows.y_B, {ACTIVITY: np.full(count, np.nan, np.float32)})
    return replace(
        complete(x, np.full(count, -1, np.int64)), targets={ACTIVITY: windows.y_B.astype(np.float32)}
    )
