"""Tasks and windows for benchmarks that measure bytes and time, and no accuracy."""

import numpy as np

from lichen_lab.simulation.data.access.split import complete
from lichen_lab.simulation.data.sets.spar import LABELS, MODALITIES
from models.contract import WindowSet
from protocol.tasks.task import Task


def demo_task() -> Task:
    """SPAR: 7 classes, accelerometer and gyroscope, 128-d features."""
    return Task(name="spar", labels=LABELS, modalities=MODALITIES)


def noise_windows(task: Task, count: int, seed: int = 0) -> WindowSet:
    """Noise windows with all classes in turn and all modalities, to measure bytes and time."""
    rng = np.random.default_rng(seed)
    x = {}
    for m in task.modalities:
        noise = rng.standard_normal((count, m.channels, task.samples(m.name)))
        x[m.name] = (m.offset + m.scale * noise).astype(np.float32)
    return complete(x, np.arange(count, dtype=np.int64) % len(task.labels))
