"""A small QQR task, its windows and a device's training, for QQR's tests."""

from dataclasses import replace

import numpy as np

from models.contract import ClientContext, WindowSet
from models.methods.qqr.client import make_client
from models.methods.qqr.prototypes import rounds_name, values_name
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window

SMALL = Encoder(width=4, depth=1)


def task(**config) -> Task:
    return Task(
        name="t",
        labels=("a", "b", "c"),
        modalities=(
            Modality(name="acc", channels=2, rate_hz=16),
            Modality(name="gyro", channels=2, rate_hz=16),
        ),
        window=Window(length_s=1),
        network=Network(encoders={"acc": SMALL, "gyro": SMALL}, feature_dim=4, hidden_dim=4),
        config=config,
    )


def windows(count: int = 12) -> WindowSet:
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(count, 2, 16)).astype(np.float32) for name in ("acc", "gyro")}
    return WindowSet(x, np.ones((count, 2), bool), np.ones((count, 2), np.float32), np.arange(count) % 3)


def without(windows: WindowSet, modality: int, where) -> WindowSet:
    present_BM = windows.present_BM.copy()
    present_BM[where, modality] = False
    x = {n: x * present_BM[:, m, None, None] for m, (n, x) in enumerate(windows.x.items())}
    return replace(windows, x=x, present_BM=present_BM)


def train(task: Task, windows: WindowSet, state=None, round_: int = 1):
    client = make_client()
    state = state or client.initial(task, 0)
    return client.train(ClientContext(task, "d", round_, 0), windows, state, {})


def with_prototypes(task: Task):
    state = make_client().initial(task, 0)
    for name in task.modality_names:
        blob = state[f"prototypes/{name}"]
        blob[values_name(name)] = np.eye(3, 4, dtype=np.float32) * 8
        blob[rounds_name(name)] = np.ones(3, np.float32)
    return state
