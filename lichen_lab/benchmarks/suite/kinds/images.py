"""What a fleet of cameras reaches with ``cnn2d``, against central training on the same images.

MNIST and Fashion-MNIST. Ten devices with 300 images each, whose classes are uneven (Dirichlet 0.5); evaluated
on the official 10,000 test images. Epochs and batches were chosen on images of the training part, with a seed
that is not measured.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.result import Bench, ResultRow, Say
from lichen_lab.benchmarks.suite.kinds.against_central import TwoWays, compared, rows_of
from lichen_lab.simulation.data.access.split import complete
from lichen_lab.simulation.data.sets import av_mnist
from lichen_lab.simulation.data.streams import dirichlet_pools, rng_of
from models.contract import WindowSet
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

SETS: Final = {
    "MNIST": (av_mnist.FOLDER, av_mnist.LABELS),
    "Fashion-MNIST": (av_mnist.FASHION, av_mnist.CLOTHING),
}
SETTING: Final = "10 devices, 300 images each, Dirichlet 0.5, 12 rounds of 3 epochs"
ACCURACY: Final = "accuracy on the test images, %"
_DEVICES: Final = 10
_EACH: Final = 300
_ROUNDS: Final = 12
_PURPOSE: Final = 31
_CAMERA: Final = Modality(
    name="camera", kind="image", channels=1, height=28, width=28, rate_hz=1, offset=64.0, scale=80.0
)


def task_of(dataset: str, seed: int, rounds: int = _ROUNDS) -> Task:
    """One camera, three convolutions, three epochs a round in small batches: 90 steps of a device."""
    return Task(
        name="images",
        labels=SETS[dataset][1],
        modalities=(_CAMERA,),
        window=Window(length_s=1, stride_s=1),
        network=Network(
            encoders={_CAMERA.name: Encoder(kind="cnn2d", width=8, depth=3)}, feature_dim=64, hidden_dim=64
        ),
        rounds=Rounds(count=rounds),
        config={"epochs": 3, "batch": 10, "lr": 0.08},
        seed=seed,
    )


def windows_of(image_BHW: NDArray[np.uint8], class_B: NDArray[np.int64]) -> WindowSet:
    """Pixels as a camera gives them, 0 to 255, row by row."""
    x_BCT = image_BHW.reshape(len(image_BHW), 1, -1).astype(np.float32)
    return complete({_CAMERA.name: x_BCT}, class_B)


def fleet(dataset: str, seed: int, rounds: int = _ROUNDS, tests: int | None = None) -> TwoWays:
    """One repetition."""
    image_BHW, class_B = av_mnist.images("train", SETS[dataset][0])
    pools = dirichlet_pools(class_B, _DEVICES, _EACH, 0.5, rng_of(_PURPOSE, seed))
    devices = {f"d{i}": windows_of(image_BHW[at], class_B[at]) for i, at in enumerate(pools)}
    unseen_BHW, unseen_B = av_mnist.images("test", SETS[dataset][0])
    test = windows_of(unseen_BHW[:tests], unseen_B[:tests])
    return TwoWays(dataset, SETTING, task_of(dataset, seed, rounds), devices, test, at_once=_DEVICES)


def _cases(quick: bool) -> Iterator[partial[TwoWays]]:  # noqa: FBT001 - as run()
    if quick:
        yield partial(fleet, "MNIST", 0, rounds=2, tests=1000)
        return
    for dataset in SETS:
        for seed in range(3):
            yield partial(fleet, dataset, seed)


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three seeds of both sets; quick: two rounds of one."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    return rows_of(compared(_cases(quick), say), ACCURACY)


BENCH: Final = Bench(name="images", run=run)
