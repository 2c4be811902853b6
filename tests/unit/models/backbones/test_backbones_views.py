"""A task with backbones: what is written, announced, cut and learned."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.workers.labelled_data import announced
from edge_agent.windows.store_file import grid_digest
from models.backbones import files
from models.backbones.views import backbones, sensed
from models.registry import method, methods
from protocol.errors import Misconfigured
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.kinds import Backbone
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Target, Task, Window
from tests.support.backbones import CAMERA, D, backbone, backbone_task, sensed_by, weights, write
from tests.support.tasks import small_task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    write(tmp_path / "eye.onnx")
    return files.prepare(backbone_task(), tmp_path)


def test_what_is_announced_is_learned_as_vectors_and_cut_as_images_and_names_no_path(task: Task) -> None:
    said = TaskAnnouncement.of(announced(task))
    assert "eye.onnx" not in said.task
    assert {"backbone", "network:linear", "modality:image"} <= set(said.needs)
    heard = said.read()
    assert heard == announced(task)
    (vector,) = heard.modalities
    assert (vector.kind, vector.channels, heard.samples("camera"), heard.network.feature_dim) == (
        "vector",
        D,
        1,
        D,
    )
    (camera,) = sensed(heard).modalities
    assert camera.model_copy(update={"backbone": None}) == CAMERA
    assert backbones(heard)["camera"].measured
    assert sensed(sensed(heard)) == sensed(heard)


def test_a_store_of_features_is_another_one_for_another_backbone_or_scale(task: Task, tmp_path: Path) -> None:
    write(tmp_path / "eye.onnx", backbone(w_VD=weights(seed=8)))
    other = files.prepare(backbone_task(), tmp_path)
    moved = sensed_by(task)[0].model_copy(update={"offset": 0.0})
    scaled = task.modalities[0].model_copy(update={"sensed": moved})
    tasks = (task, other, task.model_copy(update={"modalities": (scaled,)}))
    assert len({grid_digest(one) for one in tasks}) == 3
    assert grid_digest(announced(task)) == grid_digest(announced(task).model_copy())


def test_a_task_whose_backbone_is_not_measured_is_learned_by_nobody() -> None:
    with pytest.raises(Misconfigured, match="modality 'camera' has a backbone in a file"):
        method("qqr").configure(backbone_task())


def test_an_encoder_behind_a_backbone_is_that_of_vectors(tmp_path: Path) -> None:
    write(tmp_path / "eye.onnx")
    plain = backbone_task(linear=False)
    assert plain.encoder("camera").kind == "mlp"
    assert files.prepare(plain, tmp_path).encoder("camera").kind == "mlp"
    with pytest.raises(ValidationError, match=r"'cnn2d' does not take a modality of kind 'vector'"):
        backbone_task(network=Network(encoders={"camera": Encoder(kind="cnn2d")}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"window": Window(length_s=0.4, stride_s=0.2, context_s=2.0)},
            "modality 'camera': backbone: not with window",
        ),
        (
            {"targets": (Target(name="next", kind="generation", modality="camera"),)},
            "or a target that generates it",
        ),
        ({"network": Network(kind="linear", encoders={"camera": Encoder(kind="mlp")})}, "has no encoders"),
    ],
)
def test_what_does_not_go_with_a_backbone_is_refused_by_its_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        backbone_task(**changes)


def test_a_task_file_may_not_write_what_the_coordinator_writes(task: Task, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="sensed: written by the coordinator"):
        files.prepare(task, tmp_path)
    made = json.loads(task.modalities[0].model_dump_json())
    for broken in (
        {**made, "channels": D + 1},
        {**made, "kind": "stream"},
        {**made, "backbone": {"file": "x"}},
    ):
        with pytest.raises(ValidationError, match="sensed"):
            Modality.model_validate(broken)


def test_a_linear_network_wants_one_size_and_a_method_that_has_it() -> None:
    one, other = (
        Modality(name=name, kind="vector", channels=c, rate_hz=1) for name, c in (("a", 8), ("b", 9))
    )
    network = Network(kind="linear", feature_dim=8)
    for name in ("qqr", "fedavg"):
        method(name).configure(small_task((one,), network=network, method=name))
    with pytest.raises(ValidationError, match=r"network\.feature_dim: 8; a window of 'b' has 9 values"):
        small_task((one, other), network=network)
    for name in sorted(set(methods()) - {"qqr", "fedavg", "mmfed3_hide"}):
        with pytest.raises(Misconfigured, match=r"network\.kind = 'linear'|learns from kinds"):
            method(name).configure(small_task((one,), network=network, method=name))
    with pytest.raises(Misconfigured, match=r"config\.impute: 'pnr_posterior'"):
        method("qqr").configure(small_task((one,), network=network, config={"impute": "pnr_posterior"}))


def test_a_backbone_of_a_stream_makes_one_vector_of_a_window(tmp_path: Path) -> None:
    write(tmp_path / "ear.onnx", backbone(("b", 2, 20), weights(40)))
    imu = Modality(name="imu", channels=2, rate_hz=10, backbone=Backbone(file="ear.onnx"))
    made = files.prepare(small_task((imu,), window=Window(length_s=2.0)), tmp_path)
    assert (made.modalities[0].channels, made.samples("imu"), sensed(made).samples("imu")) == (D, 1, 20)
