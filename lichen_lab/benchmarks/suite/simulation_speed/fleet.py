"""The simulated fleet of the benchmark, for lichen and Flower: the same task, the same windows by device.

Also imported in Flower's environment: needs ``models`` and ``protocol`` alone.
"""

from typing import Final

import numpy as np

from models.contract import WindowSet
from models.multimodal.network import two_branch_task
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

SMALL: Final = "small"
REFERENCE: Final = "reference"
WINDOWS: Final = {SMALL: 32, REFERENCE: 500}
"""Windows of a device, by network."""


def task_of(network: str, rounds: int, per_round: int) -> Task:
    """The task: the small network (2,486 parameters), or the reference network of 223,622.

    Args:
        network: :data:`SMALL` or :data:`REFERENCE`.
        rounds: number of rounds.
        per_round: devices in a round.
    """
    chosen = {"rounds": Rounds(count=rounds, devices_per_round=per_round), "config": {"epochs": 1}}
    if network == REFERENCE:
        return two_branch_task().model_copy(update=chosen)
    encoder = Encoder(width=8, depth=2)
    sensors = tuple(
        Modality(name=name, channels=3, rate_hz=32.0, unit="g") for name in ("accelerometer", "gyroscope")
    )
    task = Task(
        name="small",
        method="qqr",
        labels=tuple("abcdef"),
        modalities=sensors,
        window=Window(length_s=2, stride_s=1),
        network=Network(encoders={sensor.name: encoder for sensor in sensors}, feature_dim=16, hidden_dim=32),
    )
    return task.model_copy(update=chosen)


def windows_of(task: Task, number: int, count: int) -> WindowSet:
    """Noise: the windows of the ``number``-th device."""
    rng, many = np.random.default_rng(number), len(task.modalities)
    x = {
        m.name: rng.standard_normal((count, m.channels, task.samples(m.name)), np.float32)
        for m in task.modalities
    }
    present_BM, quality_BM = np.ones((count, many), np.bool_), np.ones((count, many), np.float32)
    return WindowSet(x, present_BM, quality_BM, np.arange(count, dtype=np.int64) % len(task.labels))
