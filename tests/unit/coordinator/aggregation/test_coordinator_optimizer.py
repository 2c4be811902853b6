"""The server's optimizer behind the fold: any method, any robust fold, any order, and after a restart."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from coordinator.aggregation.fold import fold_round, fold_screened, limits_for, screen_round
from coordinator.storage.database import Database
from coordinator.storage.model_registry import ModelRegistry
from coordinator.storage.update_journal import AcceptedUpdate
from models import registry
from models.aggregation.server_optimizer import PART, model_of
from models.contract import Blobs
from models.guided import DeviceWeights
from models.tensors import flatten
from protocol.frames.frame import digest
from protocol.tasks.task import Task
from runtime.storage.blob_store import BlobStore
from tests.support.methods import contract_cases as cases

MAX_BYTES = 64 * 1024 * 1024
ADAPTIVE = {"kind": "fedadam", "lr": 0.05}


@dataclass(frozen=True)
class Sent:
    task: Task
    first: Blobs
    frames: dict[str, bytes]

    def entries(self, folder: Path) -> list[AcceptedUpdate]:
        made = []
        for device, frame in self.frames.items():
            path = folder / device
            path.write_bytes(frame)
            made.append(AcceptedUpdate(device, digest(frame), path))
        return made


@cache
def sent(method: str) -> Sent:
    """Three devices' updates of the first version, one of them without the second modality."""
    spec = registry.method(method)
    task = cases.task_of(spec)
    first = spec.client().initial(task, 3)
    frames = {}
    for number, device in enumerate(("a", "b", "c")):
        windows = cases.windows_of(task, number)
        if device == "c":
            windows = cases.deaf(windows)
        result = spec.client().train(cases.context(task, device), windows, first, {})
        frames[device] = cases.frame_of(task, device, windows, result)
    return Sent(task, first, frames)


def adaptive(task: Task, **robust: object) -> Task:
    return Task.model_validate(task.model_dump() | {"aggregator": ADAPTIVE, "robust": robust})


def as_bytes(state: Blobs) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}


def stepped_names(state: Blobs) -> set[str]:
    return {blob.split(".", 1)[1].split(".")[0] for blob in state if blob.startswith(f"{PART}/")}


@pytest.mark.parametrize("method", ["qqr", "disentafl"])
@pytest.mark.parametrize("fold", ["mean", "median"])
def test_both_methods_step_their_parts_under_any_fold_and_leave_the_rest_to_it(method, fold, tmp_path):
    given = sent(method)
    entries, spec = given.entries(tmp_path), registry.method(method)
    task, limits = adaptive(given.task, fold=fold), limits_for(given.first, MAX_BYTES)
    plain = given.task.model_copy(update={"robust": task.robust})
    mean = fold_round(spec.server(), plain, 1, given.first, entries, limits)[0]
    made = fold_round(spec.server(), task, 1, given.first, entries, limits)[0]
    assert as_bytes(made) == as_bytes(
        fold_round(spec.server(), task, 1, given.first, entries[::-1], limits)[0]
    )
    assert set(model_of(made)) == set(mean)
    assert stepped_names(made)
    assert stepped_names(made) <= set(spec.optimised)
    before, folded, now = flatten(given.first), flatten(mean), flatten(made)
    for name, tensor in folded.items():
        if f"{PART}/first.{name.rsplit('/', 1)[0].replace('/', '.')}/{name.rsplit('/', 1)[1]}" not in now:
            assert now[name].tobytes() == tensor.tobytes()
            continue
        # from nothing, each value goes at most lr (1 - beta1) / sqrt(1 - beta2), towards where the fold went
        step = (now[name] - before[name]).astype(np.float64)
        assert np.abs(step).max() <= 0.05 * 0.1 / 0.1 * 1.001
        assert (step * (tensor - before[name]) >= 0).all()


def test_a_restart_between_rounds_gives_the_same_bytes(tmp_path):
    given = sent("qqr")
    task, server = adaptive(given.task), registry.method("qqr").server()
    entries, limits = given.entries(tmp_path), limits_for(given.first, MAX_BYTES)
    through, reference = fold_round(server, task, 1, given.first, entries, limits, {})
    assert limits_for(through, MAX_BYTES) == limits, "moments make no room for larger updates"
    with Database(tmp_path / "c.sqlite3") as store:
        versions = ModelRegistry(store, BlobStore(tmp_path / "blobs"), task)
        published, manifest = versions.publish(1, through, None)
        read = versions.exact_state(published)
        assert as_bytes(read) == as_bytes(through)
        again = fold_round(server, task, 2, read, entries, limits, reference)[0]
        through = fold_round(server, task, 2, through, entries, limits, reference)[0]
        assert as_bytes(again) == as_bytes(through)
        assert versions.publish(2, again, published) == versions.publish(2, through, published)
    assert sum(name.startswith(f"{PART}/") for name in manifest.blobs) == 6


def test_a_guided_fold_follows_its_weighing_and_then_the_optimizer(tmp_path):
    given = sent("tactfl")
    entries, server = given.entries(tmp_path), registry.method("tactfl").server()
    limits = limits_for(given.first, MAX_BYTES)
    assert screen_round(given.task, entries, limits, {})
    acc, mic = "encoder/accelerometer", "encoder/microphone"
    by_a = DeviceWeights({acc: {"a": 1.0, "b": 0.0, "c": 0.0}, mic: {"a": 1.0, "b": 0.0}})
    alone = fold_screened(server, given.task, 1, given.first, entries[:1], limits)
    led = fold_screened(server, given.task, 1, given.first, entries, limits, by_a)
    assert as_bytes(led) == as_bytes(alone)
    equal = fold_screened(server, given.task, 1, given.first, entries, limits)
    assert as_bytes(equal) != as_bytes(led)
    stepped = fold_screened(server, adaptive(given.task), 1, given.first, entries, limits, by_a)
    assert stepped_names(stepped) == {"encoder"}
    assert stepped["head"] == led["head"]
    assert any((stepped[acc][name] != led[acc][name]).any() for name in led[acc])
