"""QQR's linear network in NumPy: the same steps as torch's, without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.contract import Blobs, ClientContext, WindowSet
from models.methods.qqr.linear import QqrLinear
from models.methods.qqr.prototypes import blob_name, rounds_name, values_name
from models.multimodal.prototypes import normalise
from models.registry import method
from models.training.softmax_regression import BIAS, WEIGHT
from models.worker import job_folder
from protocol.errors import Refused
from protocol.tasks.network import Network
from protocol.tasks.task import Modality, Task
from tests.support.tasks import small_task

D, N = 6, 40
EYE, EAR = (Modality(name=name, kind="vector", channels=D, rate_hz=1) for name in ("eye", "ear"))


def task_of(**config: Any) -> Task:
    network = Network(kind="linear", feature_dim=D)
    return small_task(
        (EYE, EAR), network=network, config={"batch": N, "lr": 0.5, "quality": "none", **config}
    )


def windows_of(seed: int = 0) -> WindowSet:
    """Class centres in noise; a third of the windows lacks the ear."""
    rng = np.random.default_rng(seed)
    y_B = rng.integers(0, 3, N)
    x = {
        name: (rng.normal(size=(N, D)) + 2 * np.eye(3, D)[y_B])[:, :, None].astype(np.float32)
        for name in ("eye", "ear")
    }
    present_BM = np.ones((N, 2), np.bool_)
    present_BM[::3, 1] = False
    x["ear"][::3] = 0
    return WindowSet(x, present_BM, np.ones((N, 2), np.float32), y_B)


def state_of(task: Task, seen: tuple[float, ...] = (1, 1, 0)) -> Blobs:
    """Version 0 with prototypes of two classes."""
    state = method("qqr").client().initial(task, 1)
    rng = np.random.default_rng(9)
    for name in ("eye", "ear"):
        state[blob_name(name)][values_name(name)] = rng.normal(size=(3, D)).astype(np.float32)
        state[blob_name(name)][rounds_name(name)] = np.array(seen, np.float32)
    return state


def by_torch(
    task: Task, state: Blobs, windows: WindowSet, weights: list[float] | None
) -> dict[str, np.ndarray]:
    """One step on all windows: features at length 8, a missing one the prototype of the class, or zeros."""
    y_B, parts = torch.from_numpy(windows.y_B), []
    for m, name in enumerate(("eye", "ear")):
        z_BD = normalise(torch.from_numpy(windows.x[name][:, :, 0]), 8.0)
        v_KD = normalise(torch.from_numpy(state[blob_name(name)][values_name(name)]), 8.0)
        v_KD[2] = 0
        filled = v_KD[y_B] if task.config.get("impute", "pnr") == "pnr" else torch.zeros_like(z_BD)
        parts.append(torch.where(torch.from_numpy(windows.present_BM[:, m, None]), z_BD, filled))
    weight, bias = (torch.tensor(state["head"][name], requires_grad=True) for name in (WEIGHT, BIAS))
    logits = torch.cat(parts, dim=1) @ weight.T + bias
    functional.cross_entropy(logits, y_B, None if weights is None else torch.tensor(weights)).backward()  # type: ignore[no-untyped-call]
    return {name: -0.5 * np.asarray(tensor.grad) for name, tensor in ((WEIGHT, weight), (BIAS, bias))}


@pytest.mark.parametrize(
    ("config", "weights"),
    [({}, None), ({"impute": "zero_feature"}, None), ({"class_weights": {"a": 3.0}}, [3.0, 1.0, 1.0])],
)
def test_a_step_is_that_of_torch(config: dict[str, Any], weights: list[float] | None) -> None:
    task, windows = task_of(**config), windows_of()
    state = state_of(task)
    result = QqrLinear().train(ClientContext(task, "d", 1, 5), windows, state, {})
    want = by_torch(task, state, windows, weights)
    for name, delta in want.items():
        np.testing.assert_allclose(result.tensors[name], delta, rtol=1e-4, atol=1e-6)
    assert set(result.tensors) == {WEIGHT, BIAS, values_name("eye"), values_name("ear")}
    update_shapes = {name: x.shape for name, x in result.tensors.items()}
    by_client = method("qqr").client().train(ClientContext(task, "d", 1, 5), windows, state, {})
    assert update_shapes == {name: x.shape for name, x in by_client.tensors.items()}


def test_rounds_learn_and_equal_seeds_give_equal_bytes() -> None:
    task, windows = task_of(batch=8, epochs=5), windows_of()
    state = state_of(task)
    first, again = (QqrLinear().train(ClientContext(task, "d", 2, 5), windows, state, {}) for _ in range(2))
    other = QqrLinear().train(ClientContext(task, "e", 2, 5), windows, state, {})
    assert first.tensors[WEIGHT].tobytes() == again.tensors[WEIGHT].tobytes()
    assert first.tensors[WEIGHT].tobytes() != other.tensors[WEIGHT].tobytes()
    assert first.metrics["accuracy"] >= 0.9
    assert first.metrics["steps"] == 25
    balanced = task_of(batch=8, balanced_batches=True, momentum=0.5, weight_decay=0.01, impute="mean_feature")
    assert np.isfinite(
        QqrLinear().train(ClientContext(balanced, "d", 2, 5), windows, state, {}).metrics["loss"]
    )


def test_between_sending_rounds_only_prototypes_go_and_the_head_is_kept() -> None:
    task, windows = task_of(model_every=2, personal="head"), windows_of()
    state = state_of(task)
    kept = QqrLinear().train(ClientContext(task, "d", 1, 5), windows, state, {})
    assert WEIGHT not in kept.tensors
    sent = QqrLinear().train(ClientContext(task, "d", 2, 5), windows, state, kept.private)
    assert sent.metrics["local_rounds"] == 2
    assert {WEIGHT, BIAS} <= set(sent.tensors)
    assert WEIGHT in sent.private
    alone = QqrLinear().train(ClientContext(task_of(upload="prototypes"), "d", 1, 5), windows, state, {})
    assert set(alone.tensors) == {values_name("eye"), values_name("ear")}


def test_a_head_of_another_form_is_refused() -> None:
    task = task_of()
    state = state_of(task) | {"head": {WEIGHT: np.zeros((3, D), np.float32)}}
    with pytest.raises(Refused, match=r"not one layer of \(3, 12\)"):
        QqrLinear().train(ClientContext(task, "d", 1, 5), windows_of(), state, {})


def test_the_worker_trains_it_without_torch(tmp_path: Path) -> None:
    task, windows = task_of(), windows_of()
    job = job_folder.TrainJob(task, "d", 1, 5)
    job_folder.write_train(tmp_path, job, windows, state_of(task), {})
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path\n"
        "from models.worker.__main__ import answer\nimport json; print(json.dumps(answer(Path(sys.argv[1]))))"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], capture_output=True, check=True)
    assert json.loads(ended.stdout) == {"ok": True}
    want = QqrLinear().train(ClientContext(task, "d", 1, 5), windows, state_of(task), {})
    assert job_folder.read_result(tmp_path).tensors[WEIGHT].tobytes() == want.tensors[WEIGHT].tobytes()
