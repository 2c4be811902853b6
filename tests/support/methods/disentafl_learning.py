"""Training data and training of a device of :mod:`tests.support.methods.disentafl_cases`: with torch."""

from typing import Any

import numpy as np

from models.contract import Blobs, ClientContext, LocalResult, Profile, Tensors, Update, WindowSet
from models.methods.disentafl.client import make_client
from models.methods.disentafl.routing.blob_names import route
from models.methods.disentafl.server import make_server
from protocol.tasks.task import Task
from tests.support.methods.disentafl_cases import ALL, header_of, task_of

SMALL = {"width": 16, "hidden": 16, "heads": 2, "bottleneck": 4, "lr": 0.01, "batch": 16}


def small(**config: Any) -> Task:
    return task_of(**(SMALL | config))


def on(task: Task, state: Blobs, profile: Profile, domain: int = 0) -> Blobs:
    return {name: state[name] for name in route(task, profile, (domain,))}


def learnable(task: Task, seed: int = 0, count: int = 48) -> WindowSet:
    """All four targets follow from either input: its level encodes the class."""
    rng = np.random.default_rng(seed)
    y_B = rng.integers(0, 3, count)
    x = {}
    for modality in task.modalities:
        noise = rng.normal(0, 0.2, (count, modality.channels, task.samples(modality.name)))
        x[modality.name] = (y_B[:, None, None] - 1 + noise).astype(np.float32)
    ones = np.ones((count, 3))
    targets = {"pose": (y_B > 0).astype(np.float32), "speed": (y_B - 1).astype(np.float32)}
    return WindowSet(x, ones.astype(np.bool_), ones.astype(np.float32), y_B.astype(np.int64), targets)


def context(task: Task, profile: Profile | None = ALL, device: str = "d0", round_: int = 1) -> ClientContext:
    return ClientContext(task, device, round_, seed=5, profile=profile)


def whole(task: Task, seed: int = 1) -> Blobs:
    return make_client().initial(task, seed)


def train(
    task: Task, windows: WindowSet, state: Blobs, private: Tensors | None = None, **about: Any
) -> LocalResult:
    return make_client().train(context(task, **about), windows, state, private or {})


def taken(task: Task, state: Blobs, result: LocalResult) -> Blobs:
    """The next global state, from this update alone."""
    extra = result.extra
    update = Update(header_of(task, extra, metrics=result.metrics), result.tensors)
    make_server().check(task, state, update)
    fold = make_server().open(task, 1, state)
    fold.fold(update)
    return fold.close()
