"""Small tasks and learnable windows of every kind of modality and every encoder."""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from models.contract import WindowSet
from protocol.tasks.kinds import EncoderKind, ModalityKind
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window

LABELS: Final = ("rest", "slow", "fast")
MODALITIES: Final[dict[str, Modality]] = {
    "stream": Modality(name="accelerometer", channels=3, rate_hz=32, unit="g"),
    "sound": Modality(name="microphone", kind="sound", channels=1, rate_hz=1000),
    "image": Modality(
        name="camera", kind="image", channels=3, height=8, width=10, rate_hz=5, offset=128, scale=64
    ),
    "vector": Modality(name="station", kind="vector", channels=6, rate_hz=1),
    "text": Modality(name="log", kind="text", channels=24, rate_hz=1),
}
"""By kind."""
SMALL: Final[dict[str, Encoder]] = {
    "cnn1d": Encoder(kind="cnn1d", width=4, depth=2),
    "lstm": Encoder(kind="lstm", width=4, depth=1),
    "tcn": Encoder(kind="tcn", width=4, depth=2),
    "transformer1d": Encoder(kind="transformer1d", width=8, depth=1),
    "mel": Encoder(kind="mel", width=4, depth=2, bands=12),
    "mel residual": Encoder(kind="mel", width=4, depth=3, bands=12, residual=True),
    "cnn2d": Encoder(kind="cnn2d", width=4, depth=2),
    "cnn2d residual": Encoder(kind="cnn2d", width=4, depth=4, residual=True),
    "mlp": Encoder(kind="mlp", width=8, depth=1),
    "text": Encoder(kind="text", width=8, depth=2),
}
"""Encoders of every family, by name."""
KIND_OF: Final[dict[EncoderKind, ModalityKind]] = {
    "cnn1d": "stream",
    "lstm": "stream",
    "tcn": "stream",
    "transformer1d": "stream",
    "mel": "sound",
    "cnn2d": "image",
    "mlp": "vector",
    "text": "text",
}
"""A kind that each encoder takes."""
DEFAULTS: Final[dict[str, str]] = {
    "stream": "cnn1d",
    "sound": "mel",
    "image": "cnn2d",
    "vector": "mlp",
    "text": "text",
}
"""The small encoder of each kind."""


def kind_of(name: str) -> ModalityKind:
    """A kind that the encoder of this name in :data:`SMALL` takes."""
    kind = SMALL[name].kind
    assert kind is not None
    return KIND_OF[kind]


def one_kind_task(kind: str, encoder: Encoder | None = None) -> Task:
    """A task of one modality."""
    return task_of_kinds((kind,), encoder=encoder)


def task_of_kinds(
    kinds: tuple[str, ...],
    method: str = "qqr",
    config: dict[str, JsonValue] | None = None,
    *,
    encoder: Encoder | None = None,
) -> Task:
    """A task with a modality of each of these kinds.

    Args:
        kinds: of :data:`MODALITIES`.
        method: of the task.
        config: its options.
        encoder: of all modalities; None: the small one of each kind.
    """
    modalities = tuple(MODALITIES[kind] for kind in kinds)
    encoders = {MODALITIES[kind].name: encoder or SMALL[DEFAULTS[kind]] for kind in kinds}
    return Task(
        name="kinds",
        method=method,
        labels=LABELS,
        modalities=modalities,
        window=Window(length_s=1, stride_s=0.5),
        network=Network(encoders=encoders, feature_dim=8, hidden_dim=8),
        config=config or {},
    )


def windows_of(task: Task, seed: int, count: int = 24, missing: float = 0.0) -> WindowSet:
    """Windows that are learnable from any modality; ``missing``: the share that lacks the second."""
    rng = np.random.default_rng(seed)
    y_B = np.arange(count) % len(task.labels)
    present_BM = np.ones((count, len(task.modalities)), np.bool_)
    present_BM[:, 1:2] = rng.random((count, 1)) >= missing
    x = {}
    for m, modality in enumerate(task.modalities):
        clean_BCT = _values(modality, task.samples(modality.name), y_B, rng)
        raw_BCT = modality.offset + modality.scale * clean_BCT
        x[modality.name] = (raw_BCT * present_BM[:, m, None, None]).astype(np.float32)
    return WindowSet(x, present_BM, np.ones(present_BM.shape, np.float32), y_B.astype(np.int64))


def _values(
    modality: Modality, samples: int, y_B: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """In the task's scale, with a pattern by class."""
    count, channels = len(y_B), modality.channels
    noise_BCT = rng.normal(0, 0.1, (count, channels, samples))
    if modality.kind in {"stream", "sound"}:
        hz_B = (4 if modality.kind == "stream" else 150) * y_B
        t_T = np.arange(samples) / modality.rate_hz
        phase_BC1 = rng.uniform(0, 2 * np.pi, (count, channels, 1))
        waves: NDArray[np.float64] = np.sin(2 * np.pi * hz_B[:, None, None] * t_T + phase_BC1)
        return waves + noise_BCT
    if modality.kind == "image":
        size = (modality.height or 1, modality.width or 1)
        rows_HW = np.broadcast_to(np.arange(size[0])[:, None], size)
        # stripes: none, across two rows, across four
        period_B11 = np.where(y_B == 0, 1, 2 * y_B)[:, None, None]
        stripes_BHW = np.where(y_B[:, None, None] == 0, 0, 2 * ((rows_HW // period_B11) % 2) - 1)
        return stripes_BHW.reshape(count, 1, samples) + noise_BCT
    if modality.kind == "vector":
        return noise_BCT + np.where(np.arange(channels)[:, None] % 3 == y_B[:, None, None], 1.0, 0.0)
    rate_BC1 = np.where(np.arange(channels)[:, None] % 3 == y_B[:, None, None], 3.0, 0.3)
    return rng.poisson(rate_BC1).astype(np.float64)
