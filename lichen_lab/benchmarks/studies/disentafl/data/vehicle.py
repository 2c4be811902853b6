"""Vehicle-xM: one classification, two sensors; devices have one of them or both (the paper's Table 4).

The available samples are a subset (:mod:`lichen_lab.simulation.data.sets.vehicle`), so a device has about 93
of them instead of 1,000. ``vehicle-xm`` deals them node by node in a seeded order: a device holds few nodes,
and the larger nodes are shared by several devices, so devices differ in domain. ``vehicle-xm-random`` deals
them at random: one domain, as the paper says of its fleet.
"""

from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.disentafl.data.windows import seen_by, stratified, words
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.sets import vehicle
from models.contract import Profile
from models.data.window_set import select
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window

NAME: Final = "vehicle-xm"
RANDOM: Final = "vehicle-xm-random"
KINDS: Final = (
    (Profile(("acoustic",)), 7),
    (Profile(("seismic",)), 7),
    (Profile(("acoustic", "seismic")), 6),
)
"""The kinds of device, and the number of devices of each."""
TRAIN: Final = 0.6
"""Share of a device's samples for training; the rest are its test samples."""


def task() -> Task:
    """The task; a run sets its network and options."""
    return Task(
        name=NAME,
        method="disentafl",
        labels=vehicle.LABELS,
        modalities=vehicle.MODALITIES,
        window=Window(length_s=vehicle.WINDOW_S, stride_s=vehicle.WINDOW_S),
        rounds=Rounds(min_windows=1),
    )


def build(
    seed: int,
    *,
    each: int | None = None,
    samples: int | None = None,
    train: float = TRAIN,
    by_node: bool = True,
) -> TargetFleet:
    """Build the fleet.

    Args:
        seed: of the devices' samples and sensors.
        each: devices of a kind; None: as the paper, 7, 7 and 6.
        samples: of a device; None: as many as there are.
        train: share of a device's samples, of each class.
        by_node: a device has samples of few nodes; False: of all.

    Raises:
        Misconfigured: the data set is not here.
    """
    rng = np.random.default_rng([seed, 1])
    kinds = [profile for profile, count in KINDS for _ in range(each or count)]
    dealt = by_device(vehicle.load(), len(kinds), rng, by_node=by_node)
    learned = task()
    members = []
    for at, profile in enumerate(kinds):
        windows = select(dealt.windows, np.flatnonzero(dealt.person_B == at)[:samples])
        trains_B = stratified(windows.y_B, train, rng)
        mine = seen_by(learned, profile, windows)
        members.append(
            TargetDevice(
                f"d{at:02d}", words(profile), profile, select(mine, trains_B), select(mine, ~trains_B)
            )
        )
    return TargetFleet(NAME if by_node else RANDOM, learned, tuple(members))


def by_device(split: DataSplit, devices: int, rng: np.random.Generator, *, by_node: bool) -> DataSplit:
    """The same samples in a seeded order; ``person_B`` is the device."""
    place_N = rng.permutation(int(split.person_B.max()) + 1)
    within_B = rng.permutation(len(split))
    order = within_B[np.argsort(place_N[split.person_B[within_B]], kind="stable")] if by_node else within_B
    device_B = np.arange(len(split)) * devices // len(split)
    # Neighbours in the order share nodes; without this, so would the devices of a kind.
    return DataSplit(select(split.windows, order), rng.permutation(devices)[device_B])
