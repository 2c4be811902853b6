"""A task of two inputs, a modality that is only generated and four targets; a state and updates, no torch."""

from typing import Any

import numpy as np

from models.contract import Blobs, Profile, Tensors, Update, WindowSet
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing import mean_features as features
from models.methods.disentafl.routing.blob_names import config_of, route
from models.methods.disentafl.server import travelling
from models.tensors import unflatten
from protocol.frames.headers import UpdateHeader
from protocol.tasks.task import Modality, Target, Task, Window
from tests.support.tasks import update_header

ALL = Profile(("acc", "gyro"), ("label", "pose", "speed", "picture"))
ACC = Profile(("acc",), ("label",))
GYRO = Profile(("gyro",), ("pose", "speed"))


def task_of(**config: Any) -> Task:
    return Task(
        name="walks",
        method="disentafl",
        labels=("rest", "slow", "fast"),
        modalities=(
            Modality(name="acc", channels=2, rate_hz=8, offset=1.0, scale=2.0),
            Modality(name="cam", channels=1, rate_hz=4, input=False),
            Modality(name="gyro", channels=3, rate_hz=8),
        ),
        targets=(
            Target(name="pose", labels=("sit", "stand")),
            Target(name="speed", kind="regression"),
            Target(name="picture", kind="generation", modality="cam"),
        ),
        window=Window(length_s=1, stride_s=0.5),
        config={"latent": 4, **config},
    )


def windows_of(task: Task, seed: int = 0, count: int = 12, absent: tuple[str, ...] = ("cam",)) -> WindowSet:
    rng = np.random.default_rng(seed)
    present_BM = np.tile([name not in absent for name in task.modality_names], (count, 1))
    x = {}
    for m, modality in enumerate(task.modalities):
        x_BCT = rng.normal(size=(count, modality.channels, task.samples(modality.name)))
        x[modality.name] = (x_BCT * present_BM[:, m, None, None]).astype(np.float32)
    y_B = (np.arange(count) % len(task.labels)).astype(np.int64)
    return WindowSet(x, present_BM, np.ones(present_BM.shape, np.float32), y_B)


def state_of(task: Task, seed: int = 0) -> Blobs:
    """Gates and features as they are; of every other blob, two tensors of synthetic values."""
    rng = np.random.default_rng(seed)
    state = features.fresh(task)
    for blob in route(task, ALL):
        kind, _, rest = blob.partition("/")
        if kind == "gate":
            state |= unflatten(domain_gate.initial(task, rest, rng))
        elif kind != features.PART:
            state[blob] = {
                f"{blob}/{name}": rng.normal(size=shape).astype(np.float32)
                for name, shape in (("fc.bias", (2,)), ("fc.weight", (2, 3)))
            }
    return state


def message_of(profile: Profile, **changes: Any) -> dict[str, Any]:
    extra = {"modalities": list(profile.modalities), "targets": list(profile.targets)}
    return extra | {"domain": 0, "best": 0, "accuracy": 0.5, "rows": {}} | changes


def header_of(task: Task, extra: dict[str, Any], **changes: Any) -> UpdateHeader:
    header = update_header(task, "d0", counts={"acc": (4, 4, 4)})
    return header.model_copy(update={"extra": extra, **changes})


def update_of(
    task: Task, state: Blobs, profile: Profile, seed: int = 1, domain: int = 0, **changes: Any
) -> Update:
    """The update of a device with that profile: small deltas and, with kd, its rows."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {
        name: rng.normal(0, 0.1, tensor.shape).astype(np.float32)
        for name, tensor in travelling(task, state, profile, domain).items()
    }
    rows: dict[str, list[int]] = {}
    for blob in route(task, profile, (domain,)) if config_of(task).aggregate == "kd" else ():
        table = blob.rpartition(".")[2]
        if blob.startswith(f"{features.PART}/"):
            names = profile.targets if table == "_shared" else (table,)
            rows[blob] = [r for name in names for r in features.rows_of(task, name, within=table)]
            shape = (len(rows[blob]), config_of(task).latent)
            tensors[features.values_name(blob)] = rng.normal(size=shape).astype(np.float32)
    extra = message_of(profile, **({"domain": domain, "rows": rows} | changes))
    return Update(header_of(task, extra), tensors)
