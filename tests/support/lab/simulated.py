"""Devices and streams of simulations; importable in worker processes, which test modules need not be."""

import os
import signal
from dataclasses import dataclass

import numpy as np

from models.contract import WindowSet
from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window

MODALITIES = (
    Modality(name="a", channels=2, rate_hz=16.0),
    Modality(name="b", channels=3, rate_hz=16.0),
)


def task(**changes: object) -> Task:
    """Three classes, two modalities, a small network."""
    small = Encoder(kind="cnn1d", width=4, depth=2)
    return Task(
        name="toy",
        labels=("low", "middle", "high"),
        modalities=MODALITIES,
        window=Window(length_s=1.0, stride_s=0.5),
        network=Network(encoders={"a": small, "b": small}, feature_dim=8, hidden_dim=16),
        **{"config": {"epochs": 2, "batch": 16, "lr": 0.1}, **changes},  # type: ignore[arg-type]
    )


def windows(count: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> WindowSet:
    """Three classes that a small network can separate: the level of both sensors."""
    rng = np.random.default_rng((seed, 7))
    y = rng.choice(classes, count).astype(np.int64)
    x = {
        m.name: (rng.standard_normal((count, m.channels, 16)) + 1.5 * (y[:, None, None] - 1)).astype(
            np.float32
        )
        for m in MODALITIES
    }
    return WindowSet(x, np.ones((count, 2), np.bool_), np.ones((count, 2), np.float32), y)


@dataclass(frozen=True)
class Counted:
    """Windows that must be requested once per round, in order: the process checks it."""

    windows: WindowSet
    asked: list[int]

    def at(self, round_: int) -> WindowSet:
        """The same windows every time."""
        self.asked.append(round_)
        if len(self.asked) != len(set(self.asked)):
            raise AssertionError(f"asked again for round {round_}")
        return self.windows


@dataclass(frozen=True)
class Breaking:
    """Windows of a device that ends its process, or fails, in a round."""

    windows: WindowSet
    round: int
    how: str

    def at(self, round_: int) -> WindowSet:
        """The windows, except in that round."""
        if round_ == self.round:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exits":
                os._exit(7)
            if self.how == "misconfigured":
                raise Misconfigured("key 'x' of file y is wrong")
            raise OSError("the reel is torn")
        return self.windows


@dataclass(frozen=True)
class Unlabelled:
    """Windows that have labels only in some rounds."""

    windows: WindowSet
    rounds: tuple[int, ...]

    def at(self, round_: int) -> WindowSet:
        """All windows, with labels only in those rounds."""
        if round_ in self.rounds:
            return self.windows
        bare = np.full_like(self.windows.y_B, -1)
        return WindowSet(self.windows.x, self.windows.present_BM, self.windows.quality_BM, bare)
