"""FedBN on a device without torch: an exported model takes its norms, of every kind of encoder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from edge_agent.inference.onnx_models.personal_tensors import PersonalTensors
from edge_agent.inference.onnx_models.window_model import LoadedModel
from edge_agent.storage.private_tensors import PrivateTensors
from export.bundle_builder import Lineage, make_bundle
from export.parity.gate import Parity
from models.contract import Blobs, Tensors, WindowSet
from models.registry import method
from models.tensors import batch_norms, flatten
from protocol.bundle import unpack
from protocol.tasks.network import Network
from protocol.tasks.task import Task, Window
from tests.support import kinds
from tests.support.fedavg_cases import folded, initial, train

pytestmark = pytest.mark.long

PAIRS = [("cnn1d", "lstm"), ("tcn", "mlp"), ("transformer1d", "mel residual"), ("cnn2d residual", "text")]


def task_of(encoders: tuple[str, str], **config: str) -> Task:
    modalities = [kinds.MODALITIES[kinds.kind_of(name)] for name in encoders]
    if modalities[0] == modalities[1]:
        modalities[1] = modalities[1].model_copy(update={"name": "other"})
    network = Network(
        encoders={one.name: kinds.SMALL[name] for one, name in zip(modalities, encoders, strict=True)},
        feature_dim=8,
        hidden_dim=8,
    )
    return Task(
        name="norms",
        method="fedavg",
        labels=kinds.LABELS,
        modalities=tuple(modalities),
        window=Window(length_s=1),
        network=network,
        config=config,
    )


def windows_of(task: Task, seed: int) -> WindowSet:
    rng = np.random.default_rng(seed)
    shapes = {one.name: (30, one.channels, task.samples(one.name)) for one in task.modalities}
    x = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    present_BM = np.ones((30, 2), np.bool_)
    present_BM[::4, 1] = False
    x[task.modality_names[1]][::4] = 0
    return WindowSet(x, present_BM, np.ones((30, 2), np.float32), np.arange(30) % 3)


def loaded(folder: Path, data: bytes) -> LoadedModel:
    folder.mkdir()
    manifest, files = unpack(data)
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return LoadedModel(folder, 1)


def in_torch(task: Task, state: Blobs, private: Tensors, held: WindowSet) -> np.ndarray:
    spec = method(task.method)
    module = spec.client().inference_model(task, spec.blended(task, state, private))
    present_BM = torch.from_numpy(held.present_BM.astype(np.float32))
    with torch.no_grad():
        answer: np.ndarray = module(present_BM, *map(torch.from_numpy, held.x.values()))[0].numpy()
    return answer


@pytest.mark.parametrize(
    ("encoders", "how"),
    [*((pair, "strict") for pair in PAIRS), (PAIRS[0], "with_mean")],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_fedbn_a_device_predicts_with_its_own_norms(
    tmp_path: Path, encoders: tuple[str, str], how: str
) -> None:
    task = task_of(encoders, private_norms=how)
    state, held = initial(task), windows_of(task, 1)
    result = train(task, held, state)
    state = folded(task, state, {"d": result, "e": train(task, windows_of(task, 2), state, device="e")})
    data, parity = make_bundle(task, state, Lineage(1, 1, "0" * 64, None, {}), held)
    assert isinstance(parity, Parity)
    assert parity.int8
    model = loaded(tmp_path / "model", data)
    assert set(model.overridable) == batch_norms(flatten(state))
    store = PrivateTensors(tmp_path / "private")
    (tmp_path / "private").mkdir()
    PersonalTensors(store).refresh(model, task)
    assert model.own == {}
    fleets = model.predict(held.x, held.present_BM, task.modality_names)["label"]
    np.testing.assert_allclose(fleets, in_torch(task, state, {}, held), atol=1e-5)
    store.write(task.name, result.private)
    PersonalTensors(store).refresh(model, task)
    own = model.predict(held.x, held.present_BM, task.modality_names)["label"]
    np.testing.assert_allclose(own, in_torch(task, state, result.private, held), atol=1e-4)
    assert not np.allclose(own, fleets, atol=1e-3)
