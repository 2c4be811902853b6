"""``lichen export --merge-backbone``: one ONNX file of backbone and head, for other programs."""

import json
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
import sqlalchemy as sa
import torch
from onnx import helper
from typer.testing import CliRunner

from coordinator.config.coordinator import load_settings
from coordinator.recovery.folder_owner import own_task
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from coordinator.storage.model_registry import ModelRegistry
from export.bundle_builder import inference_module
from export.cli import read_state
from export.joined import joined
from export.parity.gate import session
from lichen.commands.export import app
from lichen.commands.export_version import version_of
from models.backbones import files
from models.backbones.views import announced
from models.backbones.windows import learned, paths_in
from models.contract import Blobs, WindowSet
from models.registry import method
from protocol.errors import Misconfigured, Refused
from protocol.tasks.network import Network
from protocol.tasks.task import Modality, Task
from runtime.storage.blob_store import BlobStore
from tests.support.backbones import CAMERA, HEIGHT, WIDTH, backbone, backbone_task, quantized, write

TASK = """
name = "looks"
labels = ["dark", "bright"]
window = { length_s = 0.4, stride_s = 0.2 }
network = { kind = "linear" }

[[modalities]]
name = "camera"
kind = "image"
channels = 1
height = 6
width = 5
rate_hz = 5
offset = 128
scale = 64
backbone = { file = "eye.onnx" }
"""


def images(count: int = 5) -> WindowSet:
    x_BCT = np.random.default_rng(4).uniform(0, 255, (count, 1, HEIGHT * WIDTH)).astype(np.float32)
    ones_B1 = np.ones((count, 1), np.float32)
    return WindowSet({"camera": x_BCT}, ones_B1 > 0, ones_B1, np.zeros(count, int))


def behind(folder: Path, model: onnx.ModelProto, *, linear: bool = True) -> tuple[Task, Blobs]:
    write(folder / "eye.onnx", model)
    task = files.prepare(backbone_task(linear=linear), folder)
    return task, method("qqr").client().initial(task, 3)


def of_opset(version: int) -> onnx.ModelProto:
    model = backbone()
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", version))
    return model


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a coordinator that made one version."""
    (tmp_path / "task.toml").write_text(TASK)
    file = tmp_path / "coordinator.toml"
    file.write_text(f'fleet = "f"\nstate_dir = "{tmp_path}/state"\ntask = "task.toml"\n')
    settings = load_settings(file)
    data = write(tmp_path / "eye.onnx").read_bytes()
    task = announced(files.prepare(Task.model_validate(tomllib.loads(TASK)), tmp_path))
    (tmp_path / "state").mkdir()
    blobs = BlobStore(tmp_path / "state" / "blobs")
    blobs.put(data)
    with Database(tmp_path / "state" / DATABASE) as store:
        own_task(store, task, settings)
        registry = ModelRegistry(store, blobs, task)
        digest, _ = registry.publish(0, method("qqr").client().initial(task, 3), None)
        registry.record(0, digest, None, ("d",), wall=0.0, traffic=(0, 0), metrics={})
    return file


@pytest.mark.long
def test_a_coordinators_version_is_one_file_that_takes_images(config: Path, tmp_path: Path) -> None:
    (tmp_path / "eye.onnx").unlink()  # the coordinator has it
    out = tmp_path / "whole.onnx"
    words = ["--config", str(config), "--merge-backbone", "--out", str(out)]
    done = CliRunner().invoke(app, [*words, "--format", "json"])
    assert done.exit_code == 0, done.exception
    report = json.loads(done.stdout)
    assert (report["version"], report["size"]) == (0, out.stat().st_size)
    assert report["parity"]["batches"] == [1, 2, 7, 32]
    write(tmp_path / "eye.onnx")
    task = files.prepare(Task.model_validate(tomllib.loads(TASK)), tmp_path)
    chosen = version_of(config, None, tmp_path, with_backbones=True)
    given, state = images(), read_state(chosen.version, chosen.blobs)
    z_BD1 = learned(task, given, tmp_path).x["camera"]
    with torch.no_grad():
        want = inference_module(task, state)(torch.ones(5, 1), torch.from_numpy(z_BD1))[0]
    loaded = session(out.read_bytes())
    assert [(one.name, one.shape) for one in loaded.get_inputs()] == [
        ("present", ["batch", 1]),
        ("camera", ["batch", 1, HEIGHT * WIDTH]),
    ]
    (got,) = loaded.run(
        ["probabilities"], {"present": np.ones((5, 1), np.float32), "camera": given.x["camera"]}
    )
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5)
    about = {one.key: json.loads(one.value) for one in onnx.load(out).metadata_props}
    assert (about["task"], about["version"], about["labels"]) == ("looks", 0, ["dark", "bright"])


def test_what_cannot_be_asked_for_is_refused_in_words(config: Path, tmp_path: Path) -> None:
    words = ["--config", str(config), "--merge-backbone", "--out", str(tmp_path / "whole.onnx")]
    both = CliRunner().invoke(app, [*words, "--calibrate", "windows.npz"])
    assert "--calibrate is for a bundle" in both.output
    for blob in (tmp_path / "state" / "blobs").glob("??/*"):
        if blob.read_bytes() == (tmp_path / "eye.onnx").read_bytes():
            blob.write_bytes(b"damaged")
    damaged = CliRunner().invoke(app, words)
    assert isinstance(damaged.exception, Refused)
    assert "backbone of camera" in damaged.exception.detail
    assert "SHA-256" in damaged.exception.detail
    with Database(tmp_path / "state" / DATABASE) as store:
        bare = backbone_task().model_copy(update={"modalities": (CAMERA,), "network": Network(feature_dim=4)})
        store.put_meta({"task": bare.model_dump_json(exclude_unset=True)})
    without = CliRunner().invoke(app, words)
    assert "--merge-backbone: task 't' has no backbone" in str(without.exception)
    assert not (tmp_path / "whole.onnx").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        backbone(("b", 1, HEIGHT * WIDTH)),
        backbone((1, 1, HEIGHT, WIDTH)),
        of_opset(11),
        of_opset(22),
    ],
    ids=["flat", "one at a time", "old operators", "new operators"],
)
def test_files_of_all_accepted_forms_are_joined(tmp_path: Path, model: onnx.ModelProto) -> None:
    task, state = behind(tmp_path, model, linear=False)
    data, parity = joined(announced(task), state, paths_in(task, tmp_path), 1, "")
    assert parity.masks == 2
    assert joined(announced(task), state, paths_in(task, tmp_path), 1, "")[0] == data


@pytest.mark.long
def test_a_stream_beside_a_backbone_keeps_its_free_length(tmp_path: Path) -> None:
    write(tmp_path / "eye.onnx", backbone(outputs=("features", "scores")))
    camera = backbone_task().modalities[0]
    named = camera.model_copy(
        update={"backbone": camera.backbone and camera.backbone.model_copy(update={"output": "features"})}
    )
    acc = Modality(name="acc", channels=3, rate_hz=40.0, offset=1.0, scale=2.0)
    both = backbone_task(linear=False).model_copy(update={"modalities": (acc, named)})
    task = files.prepare(Task.model_validate(both.model_dump(exclude_unset=True)), tmp_path)
    state = method("qqr").client().initial(task, 3)
    data, parity = joined(announced(task), state, paths_in(task, tmp_path), 1, "")
    assert parity.masks == 4
    assert len(parity.samples["acc"]) > 1
    assert len(parity.samples["camera"]) == 1
    assert not [one for one in onnx.load_from_string(data).graph.node if "scores" in "".join(one.output)]


@pytest.mark.long
def test_a_backbone_whose_windows_affect_one_another_cannot_be_joined(tmp_path: Path) -> None:
    task, state = behind(tmp_path, quantized())
    with pytest.raises(
        Refused, match=r"cannot be joined: .* differ at batch .*depends on the windows beside"
    ):
        joined(announced(task), state, paths_in(task, tmp_path), 1, "")


def test_a_version_by_hand_needs_the_file_beside_the_task(config: Path, tmp_path: Path) -> None:
    (tmp_path / "eye.onnx").unlink()
    with Database(config.parent / "state" / DATABASE) as store:
        digest = store.rows(sa.select(schema.versions.c.manifest))[0]["manifest"]
    blobs = tmp_path / "state" / "blobs"
    words = ["--blobs", str(blobs), "--manifest", str(blobs / digest[:2] / digest)]
    words += ["--task", str(tmp_path / "task.toml"), "--out", str(tmp_path / "whole.onnx")]
    done = CliRunner().invoke(app, [*words, "--merge-backbone"])
    assert isinstance(done.exception, Misconfigured)
    assert "modality 'camera': backbone: " in str(done.exception)
    assert "eye.onnx: No such file" in str(done.exception)
    write(tmp_path / "eye.onnx")
    done = CliRunner().invoke(app, [*words, "--merge-backbone", "--input", "camera"])
    assert "method 'qqr' has one for all" in str(done.exception)
