"""A model of a route on a device: every target is predicted, with its own last layers, and written down."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from edge_agent.config.agent import InferSettings
from edge_agent.inference.onnx_models.compatibility import require_compatible
from edge_agent.inference.onnx_models.personal_tensors import PersonalTensors
from edge_agent.inference.onnx_models.window_model import LoadedModel
from edge_agent.inference.prediction_lines import Answered
from edge_agent.inference.service import Inference
from edge_agent.storage.private_tensors import PrivateTensors
from edge_agent.windows.quality.meter import REASONS, Quality, ScoredWindows
from export.bundle_builder import Lineage, inference_module, make_bundle
from models.contract import Blobs, Profile
from models.data.streams.windows import Windows
from models.registry import method
from models.tensors import flatten, unflatten
from protocol.bundle import BundleManifest, pack, unpack
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task
from runtime.clock import SystemClock
from tests.support.agent.predicting import predicting
from tests.support.methods.disentafl_cases import task_of
from tests.support.services import until

TASK = task_of(width=8, heads=1, hidden=8, tokens=4, last_share=0.75)
PROFILE = Profile(("acc", "gyro"), ("label", "speed", "picture"))
COUNT = 5


def route_state(task: Task = TASK) -> Blobs:
    """Of the device's route, moved away from where networks begin."""
    state, rng = method(task.method).client().initial(task, 1), np.random.default_rng(1)
    names = method(task.method).server().serving_route(task, PROFILE, None)
    return {
        blob: {n: (t + 0.2 * rng.standard_normal(t.shape)).astype(np.float32) for n, t in state[blob].items()}
        for blob in names
    }


@pytest.fixture(scope="module")
def data() -> bytes:
    return make_bundle(TASK, route_state(), Lineage(3, 3, "0" * 64, None, {}))[0]


def put(folder: Path, data: bytes) -> LoadedModel:
    folder.mkdir(exist_ok=True)
    manifest, files = unpack(data)
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return LoadedModel(folder, 1)


@pytest.fixture
def model(tmp_path: Path, data: bytes) -> LoadedModel:
    return put(tmp_path / "model", data)


def judged(task: Task = TASK) -> ScoredWindows:
    """Window 0 has all, 1 no gyroscope, 2 no camera, 3 only the camera, 4 all but no label of anything."""
    rng = np.random.default_rng(7)
    present = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1]], bool)
    x = {
        m.name: (
            rng.standard_normal((COUNT, m.channels, task.samples(m.name))) * present[:, [i], None]
        ).astype(np.float32)
        for i, m in enumerate(task.modalities)
    }
    covered = {name: np.ones((COUNT, task.samples(name)), np.bool_) for name in x}
    targets = {"speed": np.array([1.5, np.nan, 0.25, 2, np.nan], np.float32)}
    y_B = np.array([0, 1, 2, 0, -1])
    windows = Windows(np.arange(COUNT, dtype=np.float64), x, covered, present, y_B, targets)
    quality = Quality(np.ones(present.shape, np.float32), np.zeros((*present.shape, len(REASONS)), bool))
    return ScoredWindows(task, windows, quality, SystemClock().now())


def in_torch(state: Blobs, rows: list[int], task: Task = TASK) -> list[np.ndarray]:
    """``probabilities``, ``speed/value`` and ``picture/window`` by the method's own module."""
    windows = judged().windows
    present = torch.from_numpy(windows.present_BM[rows][:, [0, 2]].astype(np.float32))
    x = [torch.from_numpy(windows.x[name][rows]) for name in PROFILE.modalities]
    with torch.no_grad():
        p, _, value, window = inference_module(task, state)(present, *x)
    return [each.numpy() for each in (p, value, window)]


def same(answers: dict[str, np.ndarray], wanted: list[np.ndarray]) -> bool:
    return all(np.allclose(answers[o], w, atol=1e-5) for o, w in zip(PROFILE.targets, wanted, strict=True))


def asked(model: LoadedModel, rows: list[int]) -> dict[str, np.ndarray]:
    windows = judged().windows
    x = {name: x_BCT[rows] for name, x_BCT in windows.x.items()}
    return model.predict(x, windows.present_BM[rows], TASK.modality_names)


@pytest.mark.long
def test_every_target_is_what_the_method_s_module_says(model: LoadedModel) -> None:
    model.try_once()
    assert model.names == PROFILE.modalities
    rows = [0, 1, 2, 4]
    answers = asked(model, rows)
    assert {name: value.shape for name, value in answers.items()} == {
        "label": (4, 3),
        "speed": (4,),
        "picture": (4, 1, 4),
    }
    assert same(answers, in_torch(route_state(), rows))


@pytest.mark.long
def test_own_last_layers_are_blended_target_by_target(tmp_path, model: LoadedModel) -> None:
    """One target's own layer is damaged: the others are used, and that one stays the fleet's."""
    state, rng = route_state(), np.random.default_rng(4)
    own = {
        name: (t + rng.standard_normal(t.shape)).astype(np.float32)
        for name, t in flatten({b: state[b] for b in state if b.startswith("last/")}).items()
    }
    own["last/speed/fc.bias"] = np.array([np.nan], np.float32)
    (tmp_path / "private").mkdir()
    private = PrivateTensors(tmp_path / "private")
    kept = own | {"gate_memory/pairs": np.ones((2, 2), np.float32), "base/acc/x": np.ones(3, np.float32)}
    private.write(TASK.name, kept)
    PersonalTensors(private).refresh(model, TASK)
    assert {name.rsplit("/", 1)[0] for name in model.own} == {"last/label", "last/picture"}
    used = {name: t for name, t in own.items() if "speed" not in name}
    wanted = in_torch(method(TASK.method).blended(TASK, state, used), [0, 1])
    assert same(asked(model, [0, 1]), wanted)
    assert not same(asked(model, [0, 1]), in_torch(state, [0, 1]))


@pytest.mark.long
def test_where_weights_never_travel_the_device_s_own_are_all_that_is_used(tmp_path) -> None:
    """And a route that has no part of one kind (here: no domains) can be its own all the same."""
    task = TASK.model_copy(update={"config": {**TASK.config, "aggregate": "kd", "families": ["mote"]}})
    state, rng = route_state(task), np.random.default_rng(5)
    assert not any(blob.startswith("domain/") for blob in state)
    own = {
        name: (t + 0.3 * rng.standard_normal(t.shape)).astype(np.float32)
        for name, t in flatten(state).items()
    }
    data, parity = make_bundle(task, state, Lineage(3, 3, "0" * 64, None, {}))
    assert parity.replaced == 2
    model = put(tmp_path / "kd", data)
    assert set(model.overridable) == set(own)
    (tmp_path / "private").mkdir()
    private = PrivateTensors(tmp_path / "private")
    private.write(task.name, own)
    PersonalTensors(private).refresh(model, task)
    assert set(model.own) == set(own)
    assert same(asked(model, [0, 1]), in_torch(unflatten(own), [0, 1], task))


@pytest.mark.long
def test_an_own_layer_that_makes_one_target_not_finite_is_dropped(model: LoadedModel) -> None:
    state = route_state()
    own = {name: np.full_like(t, 3e38) for name, t in state["last/picture"].items()}
    own["last/picture/fc.bias"] *= np.array([1, -1, 1, -1], np.float32)  # whatever is added, one overflows
    model.own = own
    assert model.own
    assert same(asked(model, [0]), in_torch(state, [0]))
    assert model.own == {}


@pytest.mark.long
async def test_windows_with_an_input_become_lines_with_every_target(tmp_path, data: bytes) -> None:
    output, batch = tmp_path / "p.jsonl", judged()
    put(tmp_path / "model", data)
    async with predicting(Inference(InferSettings(output=output), SystemClock())) as inference:
        inference.activate(await inference.load(tmp_path / "model"))
        inference.enqueue(batch)
        await until(lambda: inference.predictions)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["t"] for line in lines] == [1, 2, 3, 5], "a window without any input is not asked about"
    _, value_B, window_BCT = in_torch(route_state(), [0, 1, 2, 4])
    assert [line["present"] for line in lines][1:3] == [
        {"acc": True, "gyro": False},
        {"acc": True, "gyro": True},
    ]
    there_BM = judged().windows.present_BM[[0, 1, 2, 4]]
    assert [[name in line["quality"] for name in TASK.modality_names] for line in lines] == there_BM.tolist()
    assert not there_BM.all(), "what is not there has no quality"
    assert [line["truth"] for line in lines] == ["rest", "slow", "fast", None]
    said = [line["targets"] for line in lines]
    assert [tuple(each) for each in said] == [("speed", "picture")] * 4
    assert np.allclose([each["speed"]["value"] for each in said], value_B, atol=1e-5)
    assert [each["speed"]["truth"] for each in said] == [1.5, None, 0.25, None]
    mse = np.square(window_BCT - batch.windows.x["cam"][[0, 1, 2, 4]]).mean(axis=(1, 2))
    assert [each["picture"]["mse"] for each in said][2] is None, "there the camera saw nothing"
    assert np.allclose([each["picture"]["mse"] for each in said][:2], mse[:2], atol=1e-5)


def manifest_of(*targets: str, **changes: object) -> BundleManifest:
    gyro = TASK.modality("gyro")
    fields = {
        "task": TASK.name,
        "method": TASK.method,
        "version": 7,
        "labels": TASK.labels,
        "modalities": (gyro,),
        "window": TASK.window,
        "samples": {"gyro": TASK.samples("gyro"), "cam": TASK.samples("cam")},
        "inputs": ("present", "gyro"),
        "outputs": (),
        "targets": tuple(TASK.target(name) for name in targets),
        "generated": (TASK.modality("cam"),),
        "round": 7,
        "base": "0" * 64,
        "files": {"model.onnx": {"digest": "0" * 64, "size": 1}},
    }
    return BundleManifest.model_validate(fields | changes)


def test_a_model_that_does_not_predict_label_says_so_and_nothing_else_changes() -> None:
    batch = judged()
    answers = {"pose": np.array([[0.25, 0.75]], np.float32), "speed": np.array([1 / 3], np.float32)}
    batch.windows.targets["pose"] = np.array([1, 0, 0, 0, np.nan], np.float32)
    for b, truth in ((0, "stand"), (4, None)):
        (line,) = Answered(
            batch, batch.windows.present_BM, np.array([b]), answers, manifest_of("pose", "speed"), False
        ).lines(12.5, 0.25)
        assert (line["label"], line["probabilities"]) == (None, None)
        assert line["truth"] == (TASK.labels[0] if b == 0 else None)
        assert line["targets"]["pose"] == {"label": "stand", "probabilities": [0.25, 0.75], "truth": truth}
        assert line["targets"]["speed"]["value"] == 0.3333333
        assert (line["version"], line["wall"], line["latency_ms"]) == (7, 12.5, 250)
        assert "personal" not in line
        json.dumps(line, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        (
            {"targets": [{"name": "mood", "labels": ["good", "bad"]}]},
            "WRONG_TENSORS",
            "predicts 'mood'.*it has label",
        ),
        ({"targets": [{"name": "pose", "labels": ["stand", "sit"]}]}, "WRONG_TENSORS", "'pose' has labels"),
        ({"targets": [{"name": "speed", "labels": ["a", "b"]}]}, "WRONG_TENSORS", "'speed' has kind classif"),
        (
            {"targets": [{"name": "speed", "kind": "regression", "unit": "m/s"}]},
            "WRONG_TENSORS",
            "has unit m/s",
        ),
        (
            {"generated": [{"name": "cam", "channels": 3, "rate_hz": 4}]},
            "WRONG_TENSORS",
            "'cam' have 3 channels",
        ),
        (
            {"generated": [{"name": "cam", "kind": "vector", "channels": 1, "rate_hz": 4}]},
            "WRONG_TENSORS",
            "'cam' is of kind 'vector' .vectors of 1 values., the device's of kind 'stream' .1 channel.",
        ),
        ({"generated": [{"name": "eye", "channels": 3, "rate_hz": 4}]}, "WRONG_MODALITY", "makes 'eye'"),
        ({"modalities": [{"name": "cam", "channels": 1, "rate_hz": 4}]}, "WRONG_MODALITY", "reads cam"),
    ],
)
def test_a_bundle_that_means_something_else_by_a_target_does_not_fit(
    changes, reason: str, words: str
) -> None:
    require_compatible(manifest_of("pose", "speed", "picture"), TASK, ("gyro",))
    with pytest.raises(Refused, match=words) as info:
        require_compatible(manifest_of("pose", **changes), TASK, ("gyro",))
    assert info.value.reason is Reason[reason]


def test_offset_and_scale_may_change_the_answer_is_in_the_unit() -> None:
    target = TASK.target("speed").model_copy(update={"offset": 5.0, "scale": 2.0})
    require_compatible(manifest_of(targets=(target,)), TASK, ("gyro",))


@pytest.mark.long
def test_a_manifest_that_promises_another_answer_is_refused_before_it_runs(tmp_path, data: bytes) -> None:
    manifest, files = unpack(data)
    more = manifest.model_copy(update={"targets": (*manifest.predicted, TASK.target("pose"))})
    with pytest.raises(Refused, match="no output 'pose/probabilities'"):
        put(tmp_path / "more", pack(more, files))
    longer = manifest.model_copy(update={"samples": {**manifest.samples, "cam": 9}})
    with pytest.raises(Refused, match=r"picture/window of shape \(1, 1, 4\), not \(1, 1, 9\)"):
        put(tmp_path / "longer", pack(longer, files)).try_once()
