"""Small synthetic streams and tasks for tests of the agent; real ones if the data sets are there."""

import os
from pathlib import Path

import numpy as np
import pytest

from models.data.streams.recording import Recording, Stream, write_npz
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window


def toy_task(**changes: object) -> Task:
    fields: dict[str, object] = {
        "name": "toy",
        "labels": ("slow", "middle", "fast"),
        "modalities": (
            Modality(name="acc", channels=3, rate_hz=50, low=-40, high=40),
            Modality(name="gyr", channels=2, rate_hz=25),
        ),
        "window": Window(length_s=2.56, stride_s=1.28),
        "rounds": Rounds(min_windows=8),
    }
    return Task(**{**fields, **changes})  # type: ignore[arg-type]


def motion(seconds: float, rate: float, channels: int, seed: int = 0) -> Stream:
    """A clean motion: a few sines below 4 Hz of varying strength, and a little sensor noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    strength = 1.2 + np.sin(2 * np.pi * t / 37.0)
    waves = [np.sin(2 * np.pi * f * t + p) for f, p in rng.uniform([0.5, 0], [3.5, 6], (channels, 2))]
    values = np.stack(waves, 1) * strength[:, None] + rng.normal(0, 0.02, (len(t), channels))
    return Stream(t, values.astype(np.float32))


def toy_recording(seconds: float = 120.0, label_s: float = 20.0) -> Recording:
    label_t = np.arange(0, seconds, label_s)
    label = (np.arange(len(label_t)) % 3).astype(np.int64)
    return Recording({"acc": motion(seconds, 50, 3, 1), "gyr": motion(seconds, 25, 2, 2)}, label_t, label)


def write_toy(folder: Path, seconds: float = 120.0) -> Path:
    path = folder / "toy.npz"
    write_npz(path, toy_recording(seconds))
    return path


def real_data(name: str) -> Path:
    """A real data set's folder; skips, with a message, if it is missing."""
    root = Path(os.environ.get("LICHEN_DATA", Path(__file__).parents[4] / "shared" / "data"))
    path = root / name
    if not path.is_dir():
        pytest.skip(f"SKIPPED: no real data at {path}; set LICHEN_DATA")
    return path


def turning(seconds: float, rate: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """An accelerometer (g) and a gyroscope (rad/s) on one body that is turned slowly about changing axes."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    waves = rng.uniform([0.1, 0], [0.35, 6], (3, 2))
    gyr = np.stack([0.8 * np.sin(2 * np.pi * f * t + p) for f, p in waves], 1)
    u, path = (0.0, 0.0, 1.0), []
    for a, b, c in (gyr / rate).tolist():  # du/dt = u x w
        x, y, z = u
        u = (x + y * c - z * b, y + z * a - x * c, z + x * b - y * a)
        size = float(np.sqrt(sum(one * one for one in u)))
        u = (u[0] / size, u[1] / size, u[2] / size)
        path.append(u)
    down = np.array(path)
    return down + rng.normal(0, 0.01, down.shape), gyr + rng.normal(0, 0.005, gyr.shape)
