"""A small TACTFL task of two rates, its windows without labels, and a device's training, for its tests."""

from dataclasses import replace

import numpy as np

from models.contract import Blobs, ClientContext, Context, LocalResult, Tensors, WindowSet
from models.methods.tactfl.client import make_client
from protocol.tasks.labelling import Labelled
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window

SMALL = Encoder(width=4, depth=2)


def task(context_s: float | None = None, encoder: Encoder = SMALL, **config) -> Task:
    return Task(
        name="t",
        method="tactfl",
        labels=("a", "b", "c"),
        modalities=(
            Modality(name="acc", channels=2, rate_hz=16, scale=2.0),
            Modality(name="mic", channels=2, rate_hz=32),
        ),
        window=Window(length_s=1, context_s=context_s),
        network=Network(encoders={"acc": encoder, "mic": encoder}, feature_dim=4, hidden_dim=4),
        labelled=Labelled(file="labelled.npz"),
        config=config,
    )


def windows(of: Task, count: int = 12, seed: int = 0, *, labelled: bool = False) -> WindowSet:
    """Sines with a frequency per class, with noise; the modalities share their phase."""
    rng = np.random.default_rng(seed)
    y_B = np.arange(count) % len(of.labels)
    phase_B11 = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    x = {}
    for m in of.modalities:
        t_T = np.arange(of.samples(m.name)) / m.rate_hz
        wave_BCT = np.sin(2 * np.pi * 2 * y_B[:, None, None] * t_T + phase_B11)
        noise_BCT = rng.normal(0, 0.1, (count, m.channels, len(t_T)))
        x[m.name] = (wave_BCT + noise_BCT).astype(np.float32)
    whole = np.ones((count, len(of.modalities)))
    return WindowSet(
        x,
        whole.astype(np.bool_),
        whole.astype(np.float32),
        y_B.astype(np.int64) if labelled else np.full(count, -1),
    )


def without(given: WindowSet, modality: int, where=slice(None)) -> WindowSet:
    """The same, with a modality missing from some windows."""
    present_BM = given.present_BM.copy()
    present_BM[where, modality] = False
    x = {n: x * present_BM[:, m, None, None] for m, (n, x) in enumerate(given.x.items())}
    return replace(given, x=x, present_BM=present_BM)


def with_context(of: Task, given: WindowSet, seed: int = 1) -> WindowSet:
    """The same, with noise before each window for as long as the task requires, without gaps."""
    rng = np.random.default_rng(seed)
    x, points = {}, []
    for name in of.modality_names:
        before = of.context_samples(name) - of.samples(name)
        shape = (*given.x[name].shape[:2], before)
        x[name] = np.concatenate([rng.normal(size=shape).astype(np.float32), given.x[name]], axis=2)
        points.append(of.context_samples(name))
    return replace(given, context=Context(x, np.where(given.present_BM, np.array(points), 0)))


def train(
    of: Task,
    given: WindowSet,
    state: Blobs | None = None,
    round_: int = 1,
    private: Tensors | None = None,
) -> LocalResult:
    client = make_client()
    state = state or client.initial(of, 0)
    return client.train(ClientContext(of, "d", round_, 0), given, state, private or {})
