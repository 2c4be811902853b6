"""Files for backbones: an encoder of a version, and a foreign model in plain form."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from export import backbone as made
from lichen.commands.export import app
from models.backbones import files
from models.backbones.windows import learned
from models.contract import WindowSet
from models.multimodal.network import build, load_blobs
from models.registry import method
from protocol.errors import Misconfigured, Refused
from protocol.tasks.kinds import Backbone
from protocol.tasks.network import Network
from protocol.tasks.task import Modality, Task
from tests.support.backbones import HEIGHT, WIDTH, D, backbone, backbone_task, weights, write
from tests.support.kinds import MODALITIES, SMALL
from tests.support.tasks import small_task


def behind(modality: Modality, file: str) -> Task:
    camera = modality.model_copy(update={"backbone": Backbone(file=file)})
    return small_task((camera,), network=Network(kind="linear"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "encoder"), [("image", "cnn2d residual"), ("sound", "mel"), ("stream", "lstm")]
)
def test_an_encoder_of_a_version_makes_the_features_that_it_made_there(
    tmp_path: Path, kind: str, encoder: str
) -> None:
    modality = MODALITIES[kind]
    task = small_task(
        (modality,), network=Network(encoders={modality.name: SMALL[encoder]}, feature_dim=8, hidden_dim=8)
    )
    state = method("qqr").client().initial(task, 3)
    (tmp_path / "eye.onnx").write_bytes(made.encoder_file(task, state, modality.name))
    head = files.prepare(behind(modality, "eye.onnx"), tmp_path)
    x_BCT = np.random.default_rng(2).normal(
        modality.offset, modality.scale, (5, modality.channels, task.samples(modality.name))
    )
    windows = WindowSet(
        {modality.name: x_BCT.astype(np.float32)}, np.ones((5, 1), np.bool_), np.ones((5, 1), np.float32),
        np.zeros(5, int),
    )  # fmt: skip
    net = build(task)
    load_blobs(net, state)
    want = net.features(modality.name, torch.from_numpy(windows.x[modality.name])).numpy()
    np.testing.assert_allclose(
        learned(head, windows, tmp_path).x[modality.name][:, :, 0], want, rtol=1e-4, atol=1e-5
    )


def test_an_encoder_that_a_version_does_not_have_is_refused_with_those_that_it_has() -> None:
    modality = MODALITIES["vector"]
    task = small_task((modality,), network=Network(feature_dim=8, hidden_dim=8))
    state = method("qqr").client().initial(task, 3)
    with pytest.raises(Misconfigured, match=r"--modality eye: .*\(it has station\)"):
        made.encoder_file(task, state, "eye")


def wordy(folder: Path) -> Path:
    """As other programs write models: weights beside it, a function, descriptions, weights as inputs."""
    model = backbone()
    graph = model.graph
    graph.doc_string = "made by hand"
    graph.initializer[0].CopyFrom(
        helper.make_tensor("w", TensorProto.FLOAT, weights().shape, weights().ravel())
    )
    graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, list(weights().shape)))
    graph.value_info.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, None))
    helper.set_model_props(model, {"author": "somebody"})
    model.domain, model.model_version = "org.example", 3
    body = [helper.make_node("Relu", ["a"], ["b"])]
    model.functions.append(
        helper.make_function("local", "Soft", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    )
    graph.node[2].op_type, graph.node[2].domain = "Soft", "local"
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save_model(
        model, str(folder / "wordy.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0
    )
    return folder / "wordy.onnx"


def test_a_foreign_model_is_made_plain_and_computes_the_same(tmp_path: Path) -> None:
    wordy(tmp_path)
    with pytest.raises(Misconfigured, match=r"lichen export backbone --file"):
        files.prepare(backbone_task("wordy.onnx"), tmp_path)
    said = CliRunner().invoke(
        app, ["backbone", "--file", str(tmp_path / "wordy.onnx"), "--out", str(tmp_path / "plain.onnx")]
    )
    assert said.exit_code == 0, said.output
    plain = tmp_path / "plain.onnx"
    assert hashlib.sha256(plain.read_bytes()).hexdigest() in said.output
    write(tmp_path / "eye.onnx")
    x = np.random.default_rng(1).uniform(0, 255, (4, 1, HEIGHT * WIDTH)).astype(np.float32)
    windows = WindowSet(
        {"camera": x}, np.ones((4, 1), np.bool_), np.ones((4, 1), np.float32), np.zeros(4, int)
    )
    found, want = (
        learned(files.prepare(backbone_task(name), tmp_path), windows, tmp_path).x["camera"]
        for name in ("plain.onnx", "eye.onnx")
    )
    assert found.shape == (4, D, 1)
    np.testing.assert_allclose(found, want, rtol=1e-6)
    assert numpy_helper.to_array(onnx.load(plain).graph.initializer[0]).tobytes() == weights().tobytes()


def test_a_model_of_foreign_operators_stays_refused_and_no_model_is_named(tmp_path: Path) -> None:
    write(tmp_path / "odd.onnx", backbone(domain="com.example"))
    with pytest.raises(Refused, match=r"an operator of 'com\.example'"):
        made.plain_file(tmp_path / "odd.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(Misconfigured, match=r"text\.onnx: no ONNX model"):
        made.plain_file(tmp_path / "text.onnx")
    for words in (
        ["--out", "x"],
        ["--out", "x", "--config", "c", "--file", "f"],
        ["--out", "x", "--config", "c"],
    ):
        assert CliRunner().invoke(app, ["backbone", *words]).exit_code == 2, words
