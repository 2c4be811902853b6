"""A small task of two modalities for any method, its windows, and what a device makes of them."""

from dataclasses import replace
from typing import cast

import numpy as np
from pydantic import JsonValue

from models import windowset
from models.contract import Blobs, ClientContext, LocalResult, Profile, Update, WindowSet
from models.guided import GuidedServer, Weighing
from models.params import flatten
from models.spec import MethodSpec
from protocol.frame import decode_frame, encode_frame
from protocol.task import Encoder, Modality, Network, Task, Window
from protocol.tensors import Codec, encode
from protocol.updates import UpdateHeader

OPTIONS: dict[str, dict[str, dict[str, JsonValue]]] = {
    "qqr": {"incomplete windows": {"impute": "pnr_posterior", "pce_on_incomplete": True}},
    "disentafl": {
        "kd": {"aggregate": "kd", "epochs": 3},
        "private last layer": {"last_layer": "private"},
        "without experts": {"families": []},
    },
    "tactfl": {
        "ends, classes": {
            "segments": "ends",
            "segment_share": 0.75,
            "optimizer": "sgd",
            "lr": 0.05,
            "summary": "classes",
            "rule": "clamp",
            "finetune_epochs": 2,
        }
    },
}
"""By method, what the suite's fleets learn with besides its defaults."""
UNJUDGED = {
    ("disentafl", "kd"): "devices share no weights: the coordinator has nothing to evaluate",
    ("disentafl", "private last layer"): "the coordinator has no last layer to evaluate with",
    ("disentafl", "without experts"): "an ablation: whether it learns as well is for the study",
}
"""Why the global state is not judged; how devices do there is for the suite of routed methods."""


def task_of(spec: MethodSpec, options: str = "defaults") -> Task:
    small = Encoder(width=4, depth=2)
    return Task(
        name="contract",
        method=spec.name,
        labels=("rest", "slow", "fast"),
        modalities=(
            Modality(name="accelerometer", channels=3, rate_hz=32, unit="g"),
            Modality(name="microphone", channels=2, rate_hz=64, unit="Pa"),
        ),
        window=Window(length_s=1, stride_s=0.5),
        network=Network(encoders={"accelerometer": small, "microphone": small}, feature_dim=8, hidden_dim=8),
        config=OPTIONS.get(spec.name, {}).get(options, {}),
    )


def windows_of(task: Task, seed: int, count: int = 24, missing: float = 0.0) -> WindowSet:
    """Sines whose frequency is the class: learnable from either modality."""
    rng = np.random.default_rng(seed)
    y_B = np.arange(count) % len(task.labels)
    present_BM = np.ones((count, 2), np.bool_)
    present_BM[:, 1] = rng.random(count) >= missing
    x = {}
    for m, modality in enumerate(task.modalities):
        t_T = np.arange(task.samples(modality.name)) / modality.rate_hz
        phase_BC1 = rng.uniform(0, 2 * np.pi, (count, modality.channels, 1))
        wave_BCT = np.sin(2 * np.pi * 4 * y_B[:, None, None] * t_T + phase_BC1)
        noisy_BCT = wave_BCT + rng.normal(0, 0.1, wave_BCT.shape)
        x[modality.name] = (noisy_BCT * present_BM[:, m, None, None]).astype(np.float32)
    return WindowSet(x, present_BM, np.ones((count, 2), np.float32), y_B.astype(np.int64))


def context(task: Task, device: str = "d0", round_: int = 1) -> ClientContext:
    return ClientContext(task=task, device=device, round=round_, seed=5)


def header_of(task: Task, device: str, windows: WindowSet, result: LocalResult) -> UpdateHeader:
    present = windows.present_BM.mean(axis=0)
    return UpdateHeader(
        task=task.name,
        method=task.method,
        device=device,
        round=1,
        base="0" * 64,
        weight=result.weight,
        samples=len(windows),
        counts=windowset.counts(windows, task),
        missing={name: float(1 - p) for name, p in zip(task.modality_names, present, strict=True)},
        quality=dict.fromkeys(task.modality_names, 1.0),
        metrics=result.metrics,
        extra=result.extra,
    )


def frame_of(task: Task, device: str, windows: WindowSet, result: LocalResult) -> bytes:
    encoded = {
        name: encode(tensor, result.codecs.get(name, Codec(task.uplink.codec)))
        for name, tensor in result.tensors.items()
    }
    return encode_frame(header_of(task, device, windows, result), encoded)


def received(frame: bytes) -> Update:
    return Update(*decode_frame(frame, UpdateHeader))


def learnt(spec: MethodSpec, task: Task, state: Blobs, device: str, windows: WindowSet) -> Update:
    result = spec.client().train(context(task, device), windows, state, {})
    return received(frame_of(task, device, windows, result))


def on_route(spec: MethodSpec, task: Task, state: Blobs) -> Blobs:
    return {name: state[name] for name in spec.server().route(task, Profile(("accelerometer",)))}


def only_with(spec: MethodSpec, task: Task, modality: str) -> frozenset[str]:
    """The blobs that a device has on its route because of that modality alone."""
    server = spec.server()
    others = tuple(name for name in task.modality_names if name != modality)
    found = set(server.route(task, Profile((modality,)))) - set(server.route(task, Profile(others)))
    assert found
    return frozenset(found)


def deaf(windows: WindowSet) -> WindowSet:
    x = windows.x | {"microphone": np.zeros_like(windows.x["microphone"])}
    return replace(windows, x=x, present_BM=windows.present_BM & np.array([True, False]))


def labelled_of(task: Task) -> WindowSet:
    """What the coordinator of a guided method holds."""
    return windows_of(task, seed=77, count=60, missing=0.2)


def weighed(spec: MethodSpec, task: Task, state: Blobs, updates: list[Update]) -> Weighing:
    """What the coordinator makes of devices, looking at one update after the other."""
    trainer, labelled = spec.trainer(), labelled_of(task)
    views = {u.header.device: trainer.view(task, labelled, state, u) for u in updates}
    return guided(spec).weigh(task, views)


def guided(spec: MethodSpec) -> GuidedServer:
    return cast("GuidedServer", spec.server())


def next_state(spec: MethodSpec, task: Task, round_: int, state: Blobs, updates: list[Update]) -> Blobs:
    """What the coordinator makes of a round's updates."""
    if not spec.guided:
        fold = spec.server().open(task, round_, state)
    else:
        fold = guided(spec).open_guided(task, round_, state, weighed(spec, task, state, updates))
    for update in updates:
        fold.fold(update)
    made = fold.close()
    if spec.guided:
        made, _ = spec.trainer().finish(task, round_, 5, labelled_of(task), made)
    return made


def folded(spec: MethodSpec, task: Task, state: Blobs, updates: list[Update]) -> dict[str, bytes]:
    fold = spec.server().open(task, 1, state)
    for update in updates:
        fold.fold(update)
    return as_bytes(fold.close())


def as_bytes(state: Blobs) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}
