"""MERGE-AC's shape: one sensor, one target, two domains, concept drift: the paper's test of MoDE.

The paper has CIFAR-100 and Aircraft, 15 devices. Here eight devices see written digits (MNIST) and seven see
clothing (Fashion-MNIST), in images of the same size; the target has all twenty classes, and a device has seen
five of its domain's ten. Nobody tells a device its domain: DomGate has to find it.

Devices have the official test images, the first half for training, as in MERGE-FA.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.disentafl.data import pictures
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from lichen_lab.simulation.data.access.split import Part, complete
from lichen_lab.simulation.data.sets import av_mnist
from models.contract import Profile
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window

NAME: Final = "merge-ac"
DOMAINS: Final[Mapping[str, tuple[str, int]]] = {
    "digits": (av_mnist.FOLDER, 8),
    "clothing": (av_mnist.FASHION, 7),
}
"""Domain -> folder of its images, and number of devices."""
TRAIN: Final = 120
TEST: Final = 60
CLASSES: Final = 5
"""Classes that a device has seen, of its domain's 10."""
_TENS: Final = 10
_PROFILE: Final = Profile(("image",))


def task() -> Task:
    """The task; a run sets its network and options."""
    return Task(
        name=NAME,
        method="disentafl",
        labels=(*av_mnist.LABELS, *av_mnist.CLOTHING),
        modalities=(av_mnist.IMAGE,),
        window=Window(length_s=av_mnist.WINDOW_S, stride_s=av_mnist.WINDOW_S),
        rounds=Rounds(min_windows=1),
    )


def build(
    seed: int, *, each: int | None = None, train: int = TRAIN, test: int = TEST, classes: int = CLASSES
) -> TargetFleet:
    """Build the fleet.

    Args:
        seed: of the classes that devices have seen, and of their images.
        each: devices of a domain; None: 8 and 7.
        train: a device's training windows.
        test: its test windows.
        classes: of the 10 of its domain, those that a device has seen.

    Raises:
        Misconfigured: MNIST or Fashion-MNIST is not here.
    """
    rng = np.random.default_rng([seed, 10])
    parts: tuple[tuple[Part, int], ...] = (("train", train), ("test", test))
    members: list[TargetDevice] = []
    for place, (domain, (folder, count)) in enumerate(DOMAINS.items()):
        pools = {part: pictures.half(av_mnist.images("test", folder), part) for part, _ in parts}
        for _ in range(each or count):
            seen = np.sort(rng.permutation(_TENS)[:classes])
            both = []
            for part, windows in parts:
                y_B = rng.permutation(np.resize(seen, windows)).astype(np.int64)
                image_BWH = pictures.as_stream(pools[part].drawn(y_B, rng))
                both.append(complete({"image": image_BWH}, y_B + _TENS * place))
            name = f"d{len(members):02d}"
            first, last = both
            members.append(TargetDevice(name, f"image of {domain} > label", _PROFILE, first, last))
    return TargetFleet(NAME, task(), tuple(members))
