"""Export of every kind of modality: parity, free lengths, int8 with a spectrogram in float32, and devices."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from edge_agent.inference.onnx_models.encoder_model import MAX_MODEL_BYTES, EncoderModel
from edge_agent.inference.serving.served_kinds import ServedWindows
from export.bundle_builder import Lineage, inference_module, make_bundle
from export.computed_constants import compute_tables
from export.encoder_models import check as check_encoder
from export.encoder_models import make_encoder_models
from export.parity.gate import Parity
from models.backbones.graph_safety import require_safe_model
from models.contract import Blobs
from models.multimodal.encoders.log_mel import LogMel
from models.multimodal.network import build, to_blobs
from models.registry import method
from protocol.bundle import BundleManifest, unpack
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window
from tests.support.agent.predicting import predicting
from tests.support.agent.serving import inference, put
from tests.support.kinds import (
    MODALITIES,
    SMALL,
    kind_of,
    one_kind_task,
    task_of_kinds,
    windows_of,
)

LINEAGE = Lineage(1, 1, "0" * 64, None, {})
ENCODERS = {
    "accelerometer": Encoder(kind="transformer1d", width=8, depth=1),
    "microphone": Encoder(kind="mel", width=16, depth=3, bands=16, residual=True),
    "camera": Encoder(kind="cnn2d", width=24, depth=3, residual=True),
    "station": Encoder(kind="mlp", width=8, depth=1),
    "log": Encoder(kind="text", width=8, depth=1),
}


def mixed(*kinds: str) -> Task:
    """Modalities of these kinds, large enough for int8 to save something."""
    task = task_of_kinds(kinds)
    return task.model_copy(
        update={
            "network": task.network.model_copy(
                update={"encoders": {name: ENCODERS[name] for name in task.modality_names}}
            )
        }
    )


Bundled = tuple[Task, BundleManifest, dict[str, bytes]]


def made_bundle(task: Task, missing: float = 0.0) -> tuple[bytes, Parity]:
    data, parity = make_bundle(task, started(task), LINEAGE, windows_of(task, 9, 144, missing))
    assert isinstance(parity, Parity)
    return data, parity


def started(task: Task) -> Blobs:
    return method(task.method).client().initial(task, seed=3)


@pytest.fixture(scope="module")
def packed() -> tuple[Task, bytes]:
    task = mixed("image", "sound", "text")
    return task, made_bundle(task, missing=0.2)[0]


@pytest.fixture(scope="module")
def bundled(packed: tuple[Task, bytes]) -> Bundled:
    task, data = packed
    return task, *unpack(data)


@pytest.mark.long
def test_images_vectors_and_texts_have_a_fixed_length_and_samples_a_free_one(bundled: Bundled) -> None:
    _, manifest, _ = bundled
    tried = manifest.parity["samples"]
    assert {name for name, lengths in tried.items() if len(lengths) == 1} == {"camera", "log"}
    assert tried["microphone"] == [1000, 500, 1001, 2000]
    assert manifest.parity["masks"] == 8


@pytest.mark.long
def test_convolutions_are_in_int8_and_the_spectrogram_is_not(bundled: Bundled) -> None:
    task, manifest, files = bundled
    assert manifest.variants, manifest.parity["int8"]
    variant = onnx.load_from_string(files[manifest.variants["int8"].file])
    made_by = {output: node for node in variant.graph.node for output in node.output}
    rounded = [
        made_by[node.input[1]].op_type == "DequantizeLinear"
        for node in variant.graph.node
        if node.op_type == "Conv" and node.input[1] in made_by
    ]
    assert rounded.count(False) == 1, "the transform's, which a node computes"
    assert rounded.count(True) >= 8
    for name, graph in files.items():
        require_safe_model(graph, name)
    assert task.method == manifest.method


@pytest.mark.long
async def test_a_device_predicts_from_every_kind_as_torch_does(
    packed: tuple[Task, bytes], bundled: Bundled, tmp_path: Path
) -> None:
    task, data = packed
    assert bundled[1].inputs[-1] == "log", "torch gives that name to an inner value, too"
    module = inference_module(task, started(task))
    windows = windows_of(task, seed=5, count=6)
    present_BM = windows.present_BM.copy()
    present_BM[1], present_BM[2] = np.arange(3) == 2, np.arange(3) != 1
    arguments = [torch.from_numpy(windows.x[name]) for name in task.modality_names]
    with torch.no_grad():
        want = module(torch.from_numpy(present_BM.astype(np.float32)), *arguments)[0].numpy()
    async with predicting(inference(variant="float32")) as running:
        model = await running.load(put(tmp_path / "a", data))
        running.activate(model)
        assert isinstance(model, ServedWindows)
        found = await model.predict(windows.x, present_BM, None)
    assert np.abs(found["label"] - want).max() < 1e-4


@pytest.fixture(scope="module")
def sights_and_sounds() -> tuple[Task, dict[str, bytes]]:
    task = task_of_kinds(("image", "sound"))
    return task, make_encoder_models(task)


@pytest.mark.long
def test_devices_without_torch_have_features_of_images_and_sound(
    sights_and_sounds: tuple[Task, dict[str, bytes]],
) -> None:
    task, graphs = sights_and_sounds
    torch.manual_seed(4)
    net = build(task).eval()
    windows = windows_of(task, seed=5, count=3)
    for name, graph in graphs.items():
        got = EncoderModel(graph).run(windows.x[name], to_blobs(net)[f"encoder/{name}"])
        want = net.features(name, torch.from_numpy(windows.x[name])).numpy()
        assert np.abs(got - want).max() < 1e-4


@pytest.mark.long
def test_a_transform_is_computed_and_fills_no_encoder_model(
    sights_and_sounds: tuple[Task, dict[str, bytes]],
) -> None:
    _, graphs = sights_and_sounds
    proto = onnx.load_from_string(graphs["microphone"])
    assert max(np.prod(t.dims) for t in proto.graph.initializer) == 12 * 17, "the bands: 12 of 17 frequencies"


def test_only_the_table_of_a_transform_is_computed() -> None:
    table = LogMel(8000, 8).dft.numpy()
    proto = onnx.ModelProto()
    others = {"kernel": table + 0.01, "wide": np.tile(table, (1, 2, 1)), "short": table[:-1], "row": table[0]}
    for name, value in {"table": table, **others}.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    compute_tables(proto)
    assert {t.name for t in proto.graph.initializer if "." not in t.name} == set(others)
    assert [n.output[0] for n in proto.graph.node if n.op_type == "Unsqueeze"] == ["table"]


@pytest.mark.long
def test_a_model_of_all_kinds_agrees_with_torch_for_every_mask() -> None:
    task = mixed(*MODALITIES)
    _, parity = made_bundle(task, missing=0.2)
    assert parity.masks == 32
    assert parity.latency_int8_ms > 0, parity.int8


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_each_encoder_alone_is_exported_for_devices_with_and_without_torch(name: str) -> None:
    task = one_kind_task(kind_of(name), SMALL[name])
    data, parity = made_bundle(task)
    assert parity.max_difference < 1e-4
    for file, graph in unpack(data)[1].items():
        require_safe_model(graph, file)
    (graph,) = make_encoder_models(task).values()
    EncoderModel(graph).try_once()


@pytest.mark.long
@pytest.mark.parametrize(
    "modality",
    [
        Modality(name="mic", kind="sound", channels=1, rate_hz=16_000),
        Modality(name="mic", kind="sound", channels=2, rate_hz=48_000),
        Modality(name="cam", kind="image", channels=3, height=96, width=96, rate_hz=5, offset=128, scale=64),
        Modality(name="cam", kind="image", channels=1, height=28, width=28, rate_hz=5, offset=128, scale=64),
    ],
    ids=lambda m: f"{m.kind} {m.rate_hz:g} {m.height}",
)
def test_default_encoders_of_sound_and_images_fit_a_device_and_int8_takes_them(modality: Modality) -> None:
    task = Task(
        name="one", labels=("a", "b", "c"), modalities=(modality,), window=Window(length_s=1, stride_s=1)
    )
    data, parity = made_bundle(task)
    manifest, files = unpack(data)
    assert manifest.variants, parity.int8
    assert len(files["model.onnx"]) < MAX_MODEL_BYTES
    graphs = make_encoder_models(task)
    EncoderModel(graphs[modality.name]).try_once()
    check_encoder(graphs[modality.name], task, modality)


@pytest.mark.long
def test_large_windows_go_through_an_encoder_model_a_few_at_a_time() -> None:
    modality = Modality(name="cam", kind="image", channels=3, height=256, width=256, rate_hz=5)
    network = Network(encoders={"cam": Encoder(width=4, depth=1)}, feature_dim=4, hidden_dim=4)
    window = Window(length_s=1, stride_s=1)
    task = Task(name="one", labels=("a", "b"), modalities=(modality,), window=window, network=network)
    graph = EncoderModel(make_encoder_models(task)["cam"])
    assert graph.at_once == 2
    blob = to_blobs(build(task).eval())["encoder/cam"]
    assert graph.run(np.ones((5, 3, 256 * 256), np.float32), blob).shape == (5, 4)
