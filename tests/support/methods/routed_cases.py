"""Devices with unlike sensors and targets for any routed method, and rounds as the agent runs them."""

from dataclasses import replace

import numpy as np
import torch

from models.contract import Blobs, ClientContext, LocalResult, Profile, Tensors, WindowSet
from models.spec import MethodSpec
from models.tensors import npz_bytes
from protocol.frames.frame import digest
from protocol.tasks.task import Target, Task
from tests.support.methods import contract_cases

PROFILES = {
    "accelerometer": Profile(("accelerometer",)),
    "microphone": Profile(("microphone",)),
    "both": Profile(("accelerometer", "microphone")),
    "another target": Profile(("accelerometer",), ("moves",)),
    "all": Profile(("accelerometer", "microphone"), ("label", "moves", "force", "sound")),
}
TARGETS = (
    Target(name="moves", labels=("no", "yes")),
    Target(name="force", kind="regression", scale=2.0),
    Target(name="sound", kind="generation", modality="microphone"),
)


def task_of(spec: MethodSpec, options: str = "defaults") -> Task:
    """The suite's task, with one target of each kind."""
    return contract_cases.task_of(spec, options).model_copy(update={"targets": TARGETS})


def windows_of(task: Task, profile: Profile, seed: int, count: int = 24) -> WindowSet:
    """The recordings of such a device: sensors and labels of its profile, no others."""
    whole = contract_cases.windows_of(task, seed, count)
    there_M = np.array([name in profile.modalities for name in task.modality_names])
    known = {"moves": whole.y_B > 0, "force": whole.y_B * 2.0}
    return WindowSet(
        x={name: x * there for (name, x), there in zip(whole.x.items(), there_M, strict=True)},
        present_BM=whole.present_BM & there_M,
        quality_BM=whole.quality_BM,
        y_B=whole.y_B if "label" in profile.targets else np.full(count, -1),
        targets={o: y_B.astype(np.float32) for o, y_B in known.items() if o in profile.targets},
    )


def context(task: Task, profile: Profile, device: str = "d0", round_: int = 1) -> ClientContext:
    return replace(contract_cases.context(task, device, round_), profile=profile)


def fetched(
    spec: MethodSpec, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
) -> Blobs:
    """The blobs that the device fetches: the router's first ones, then those that it chooses."""
    router, profile = spec.router(), context.profile
    assert profile is not None
    first = {name: state[name] for name in router.first(context.task, profile)}
    return {name: state[name] for name in router.choose(context, windows, first, private)}


def learnt(
    spec: MethodSpec, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
) -> LocalResult:
    """A device's round on the blobs that it fetched."""
    route = fetched(spec, context, windows, state, private)
    return spec.client().train(context, windows, route, private)


def digests(state: Blobs) -> dict[str, str]:
    return {name: digest(npz_bytes(tensors)) for name, tensors in state.items()}


def predicted(spec: MethodSpec, task: Task, route: Blobs, windows: WindowSet) -> list[np.ndarray]:
    """All outputs of a model made from these blobs alone."""
    model = spec.client().inference_model(task, route)
    column = [task.modality_names.index(name) for name in model.modalities]
    present_BM = torch.from_numpy(windows.present_BM[:, column].astype(np.float32))
    with torch.no_grad():
        made = model(present_BM, *(torch.from_numpy(windows.x[name]) for name in model.modalities))
    return [y.numpy() for y in made]
