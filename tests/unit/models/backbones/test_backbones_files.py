"""Which files may be backbones: each fault is named, and nothing is run that is not plain."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from coordinator.workers import backbones as of_coordinator
from models.backbones import files
from models.backbones.views import announced, sensed
from models.backbones.windows import learned, paths_in, runs_of
from models.contract import WindowSet
from models.data import window_set
from models.worker import backbones as jobs
from protocol.errors import Misconfigured
from protocol.tasks.kinds import Backbone
from tests.support.backbones import (
    CAMERA,
    HEIGHT,
    WIDTH,
    D,
    backbone,
    backbone_task,
    features_of,
    quantized,
    weights,
    write,
)


def outside(folder: Path) -> onnx.ModelProto:
    """Weights in a file beside the model."""
    model = backbone()
    onnx.save_model(
        model, str(folder / "eye.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return onnx.load(str(folder / "eye.onnx"), load_external_data=False)


def infinite(_: Path) -> onnx.ModelProto:
    return backbone(w_VD=np.full((HEIGHT * WIDTH, D), np.nan, np.float32))


def branching(_: Path) -> onnx.ModelProto:
    one = helper.make_graph(
        [helper.make_node("Relu", ["pixels"], ["made"])],
        "branch",
        [],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, None)],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["yes"], ["features"], then_branch=one, else_branch=one)],
        "backbone",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["b", 1, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["b", 4])],
        [numpy_helper.from_array(np.array(True), "yes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


REFUSED: dict[str, tuple[Callable[[Path], onnx.ModelProto], str]] = {
    "foreign operator": (lambda _: backbone(domain="com.example"), "an operator of 'com.example'"),
    "weights elsewhere": (outside, "constants in files outside of it"),
    "a branch": (branching, "a graph inside an operator"),
    "other size": (
        lambda _: backbone(("b", 1, 7, WIDTH), weights(35)),
        r"input 'pixels' .*windows of 'camera' are \(B, 1, 6, 5\)",
    ),
    "channels last": (lambda _: backbone(("b", HEIGHT, WIDTH, 1)), r"are \(B, 1, 6, 5\) or \(B, 1, 30\)"),
    "three at once": (lambda _: backbone((3, 1, HEIGHT, WIDTH)), "takes 3 windows at once"),
    "two outputs": (lambda _: backbone(outputs=("a", "b")), r"it has 2 outputs; name one: .*a, b"),
    "not finite": (infinite, "is not finite"),
    "too wide": (lambda _: backbone(w_VD=weights(features=5000)), "it makes 5000 features, not 1 to 4096"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_file_that_is_no_backbone_of_the_modality_is_refused_in_words(tmp_path: Path, case: str) -> None:
    make, words = REFUSED[case]
    write(tmp_path / "eye.onnx", make(tmp_path))
    with pytest.raises(Misconfigured, match=rf"modality 'camera': backbone: .*eye.onnx: .*{words}"):
        files.prepare(backbone_task(), tmp_path)


def test_a_file_that_is_missing_no_model_too_large_or_another_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, file = backbone_task(), tmp_path / "eye.onnx"
    with pytest.raises(Misconfigured, match=r"eye.onnx: No such file"):
        files.prepare(task, tmp_path)
    file.write_bytes(b"no model at all")
    with pytest.raises(
        Misconfigured, match=r"never accepted from the network; lichen export backbone --file"
    ):
        files.prepare(task, tmp_path)
    write(file)
    pinned = task.modalities[0].model_copy(update={"backbone": Backbone(file="eye.onnx", sha256="0" * 64)})
    with pytest.raises(Misconfigured, match=r"its SHA-256 is not 0000.*backbone\.sha256"):
        files.prepare(task.model_copy(update={"modalities": (pinned,)}), tmp_path)
    counted = task.modalities[0].model_copy(update={"backbone": Backbone(file="eye.onnx", features=3)})
    with pytest.raises(Misconfigured, match=r"it makes 16 features, not 3"):
        files.prepare(task.model_copy(update={"modalities": (counted,)}), tmp_path)
    monkeypatch.setattr(files, "MAX_BACKBONE_BYTES", 100)
    with pytest.raises(Misconfigured, match=r"bytes, at most 100"):
        files.prepare(task, tmp_path)


@pytest.mark.parametrize("shape", [("b", 1, HEIGHT, WIDTH), (1, 1, HEIGHT, WIDTH), (None, 1, HEIGHT * WIDTH)])
def test_features_are_those_of_the_scaled_windows_whatever_the_batch(
    tmp_path: Path, shape: tuple[Any, ...]
) -> None:
    write(tmp_path / "eye.onnx", backbone(shape))
    task = files.prepare(backbone_task(), tmp_path)
    x_BCT = np.random.default_rng(1).uniform(0, 255, (35, 1, HEIGHT * WIDTH)).astype(np.float32)
    present_BM = np.ones((len(x_BCT), 1), np.bool_)
    present_BM[4] = False
    windows = WindowSet(
        {"camera": x_BCT}, present_BM, np.ones((len(x_BCT), 1), np.float32), np.zeros(len(x_BCT), int)
    )
    found = learned(task, windows, tmp_path).x["camera"]
    want = features_of((x_BCT - CAMERA.offset) / CAMERA.scale)
    want[4] = 0
    np.testing.assert_allclose(found[:, :, 0], want, rtol=1e-5, atol=1e-5)


def test_features_of_a_window_do_not_depend_on_the_windows_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "eye.onnx", quantized())
    task = files.prepare(backbone_task(), tmp_path)
    x_BCT = np.random.default_rng(1).uniform(0, 255, (9, 1, HEIGHT * WIDTH)).astype(np.float32)
    x_BCT[3] *= 20
    run = runs_of(task, paths_in(task, tmp_path))["camera"]
    together = run(x_BCT)
    assert together[:3].any(axis=1).all()
    np.testing.assert_array_equal(together, np.concatenate([run(x_BCT[:2]), run(x_BCT[2:])]))
    session = onnxruntime.InferenceSession(tmp_path / "eye.onnx", providers=["CPUExecutionProvider"])
    scaled = ((x_BCT - CAMERA.offset) / CAMERA.scale).reshape(9, 1, HEIGHT, WIDTH)
    (batch,) = session.run(None, {"pixels": scaled})
    assert (batch[:3] != together[:3]).any(), "this model does depend on them, in one call"


def test_one_of_several_outputs_may_be_named(tmp_path: Path) -> None:
    write(tmp_path / "eye.onnx", backbone(outputs=("scores", "features")))
    task = backbone_task()
    named = task.modalities[0].model_copy(update={"backbone": Backbone(file="eye.onnx", output="features")})
    made = files.prepare(task.model_copy(update={"modalities": (named,)}), tmp_path)
    assert made.modalities[0].channels == D
    wrong = named.model_copy(update={"backbone": Backbone(file="eye.onnx", output="feature")})
    with pytest.raises(Misconfigured, match=r"no output 'feature' \(it has scores, features\)"):
        files.prepare(task.model_copy(update={"modalities": (wrong,)}), tmp_path)


def test_a_coordinator_measures_and_converts_in_a_child_process(tmp_path: Path) -> None:
    file = write(tmp_path / "eye.onnx")
    task = of_coordinator.prepare(backbone_task(), tmp_path)
    assert task == files.prepare(backbone_task(), tmp_path)
    said = sensed(task).modalities[0].backbone
    assert said == Backbone(
        file="eye.onnx",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        size=file.stat().st_size,
        features=D,
    )
    windows = WindowSet(
        {"camera": np.full((2, 1, HEIGHT * WIDTH), 200, np.float32)},
        np.ones((2, 1), np.bool_), np.ones((2, 1), np.float32), np.array([0, 1]),
    )  # fmt: skip
    (tmp_path / of_coordinator.FOLDER).mkdir()
    of_coordinator.path_of(said, tmp_path).write_bytes(file.read_bytes())
    window_set.save(tmp_path / "windows.npz", windows)
    of_coordinator.converted(announced(task), tmp_path, tmp_path / "windows.npz")
    found = window_set.load(tmp_path / "windows.npz", task)
    np.testing.assert_array_equal(found.x["camera"], learned(task, windows, tmp_path).x["camera"])
    write(file, backbone(domain="com.example"))
    with pytest.raises(Misconfigured, match=r"an operator of 'com\.example'"):
        of_coordinator.prepare(backbone_task(), tmp_path)


def test_a_child_that_is_given_nonsense_says_so(tmp_path: Path) -> None:
    (tmp_path / jobs.JOB).write_text('{"kind": "measure"}')
    command = [sys.executable, "-P", "-m", jobs.__name__, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert json.loads(ended.stdout)["kind"] == "Misconfigured"
