"""What a device keeps of its own training reaches its predictions, and nothing kept can stop them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from edge_agent.config.agent import AgentSettings, InferSettings
from edge_agent.inference.onnx_models.personal_tensors import PersonalTensors
from edge_agent.inference.onnx_models.window_model import LoadedModel
from edge_agent.inference.service import Inference
from edge_agent.opening import open_agent
from edge_agent.sources.registry import open_sources
from edge_agent.storage.private_tensors import PrivateTensors
from edge_agent.windows.quality.meter import REASONS, Quality, ScoredWindows
from export.bundle_builder import Lineage, make_bundle
from models.contract import Blobs, Tensors
from models.data.streams.windows import Windows
from models.methods.qqr.personal import blended
from models.registry import method
from models.tensors import flatten, unflatten
from protocol.bundle import BundleManifest, pack, unpack
from protocol.errors import Refused
from protocol.tasks.network import Encoder
from protocol.tasks.task import Task
from runtime.clock import SystemClock
from tests.support.agent.data import write_toy
from tests.support.agent.predicting import predicting
from tests.support.services import until
from tests.support.tasks import sensors, small_network, small_task

TASK = small_task(
    sensors(acc=(3, 10), gyr=(2, 10)),
    "abcd",
    network=small_network(**dict.fromkeys(("acc", "gyr"), Encoder(kind="cnn1d", width=4, depth=2))),
    config={"personal": "both", "personal_share": 0.7},
)
OWN = ("head", "prototypes/acc", "prototypes/gyr")


def global_state() -> Blobs:
    """Classes a to c have prototypes, in acc alone d too, on which nobody trained."""
    state = method("qqr").client().initial(TASK, 1)
    rng = np.random.default_rng(1)
    for name, rounds in (("acc", [3, 2, 1, 2]), ("gyr", [1, 1, 1, 0])):
        state[f"prototypes/{name}"] = {
            f"prototypes/{name}/values": rng.standard_normal((4, 8)).astype(np.float32),
            f"prototypes/{name}/rounds": np.array(rounds, np.float32),
        }
    state["classes"] = {"classes/trained": np.array([3, 3, 3, 0], np.float32)}
    return state


def kept(seed: int = 2) -> Tensors:
    """As training leaves them: a head, a table that has seen class d, and what is no business of a model."""
    rng = np.random.default_rng(seed)
    state = global_state()
    own = {
        name: (tensor + 0.3 * rng.standard_normal(tensor.shape)).astype(np.float32)
        for name, tensor in flatten({blob: state[blob] for blob in OWN}).items()
    }
    for name in ("acc", "gyr"):
        own[f"prototypes/{name}/rounds"] = np.array([0, 2, 0, 1], np.float32)
    return own | {"between/head/fc1.weight": np.ones(3, np.float32)}


@pytest.fixture(scope="module")
def data() -> bytes:
    return make_bundle(TASK, global_state(), Lineage(3, 3, "0" * 64, None, {}))[0]


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


@pytest.fixture
def private(tmp_path: Path) -> PrivateTensors:
    (tmp_path / "private").mkdir()
    return PrivateTensors(tmp_path / "private")


def windows(count: int = 6) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(count)
    x = {m.name: rng.standard_normal((count, m.channels, 20)).astype(np.float32) for m in TASK.modalities}
    present = np.array([[1, 1], [1, 0], [0, 1], [1, 1], [0, 1], [1, 0]] * count, bool)[:count]
    return x, present


def answer(model: LoadedModel) -> np.ndarray:
    return model.predict(*windows(), TASK.modality_names)["label"]


def in_torch(private: Tensors, task: Task = TASK) -> np.ndarray:
    qqr = method("qqr")
    state = blended(qqr.configure(task), global_state(), private)
    module = qqr.client().inference_model(task, state)
    x, present = windows()
    with torch.no_grad():
        return module(torch.from_numpy(present.astype(np.float32)), *map(torch.from_numpy, x.values()))[
            0
        ].numpy()


def test_without_torch_it_predicts_what_the_method_s_own_model_does(model, private) -> None:
    private.write(TASK.name, kept())
    PersonalTensors(private).refresh(model, TASK)
    assert {name.rsplit("/", 1)[0] for name in model.own} == set(OWN)
    assert np.allclose(answer(model), in_torch(kept()), atol=1e-5)
    assert not np.allclose(answer(model), in_torch({}), atol=1e-2)


def test_with_nothing_kept_it_is_the_global_model(model, private) -> None:
    PersonalTensors(private).refresh(model, TASK)
    assert model.own == {}
    assert np.allclose(answer(model), in_torch({}), atol=1e-5)


def test_a_write_counts_from_the_next_look_and_only_a_write_is_read(model, private, monkeypatch) -> None:
    personal, reads = PersonalTensors(private), []
    read = private.read_some
    monkeypatch.setattr(private, "read_some", lambda task, names: reads.append(task) or read(task, names))
    personal.refresh(model, TASK)
    for seed in (2, 3):
        private.write(TASK.name, kept(seed))
        for _ in range(3):
            personal.refresh(model, TASK)
        assert np.allclose(answer(model), in_torch(kept(seed)), atol=1e-5)
    assert len(reads) == 3


def test_a_new_model_gets_the_own_tensors_too(tmp_path, data, model, private) -> None:
    private.write(TASK.name, kept())
    personal = PersonalTensors(private)
    personal.refresh(model, TASK)
    newer = put(tmp_path / "newer", data)
    personal.refresh(newer, TASK)
    assert newer.own.keys() == model.own.keys() != set()


def test_the_task_s_share_counts_and_a_task_that_keeps_nothing_uses_nothing(model, private) -> None:
    private.write(TASK.name, kept())
    personal = PersonalTensors(private)
    for config in ({"personal": "both", "personal_share": 0.2}, {"personal": "head"}, {"personal": "none"}):
        task = TASK.model_copy(update={"config": config})
        personal.refresh(model, task)
        assert np.allclose(answer(model), in_torch(kept(), task), atol=1e-5), config
    assert model.own == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head/fc2.bias", np.zeros(5, np.float32)),
        ("head/fc2.bias", np.array([0, np.nan, 0, 0], np.float32)),
        ("prototypes/acc/values", np.full((4, 8), np.inf, np.float32)),
        ("prototypes/gyr/rounds", None),
    ],
)
def test_what_does_not_fit_is_left_out_by_blob_and_named(model, private, name: str, value) -> None:
    wrong = kept() | {name: value}
    private.write(TASK.name, {key: x for key, x in wrong.items() if x is not None})
    with capture_logs() as logs:
        PersonalTensors(private).refresh(model, TASK)
    blob = name.rsplit("/", 1)[0]
    assert {key.rsplit("/", 1)[0] for key in model.own} == set(OWN) - {blob}
    assert [(said["blob"], said["wrong"]) for said in logs if "wrong" in said] == [(blob, [name])]
    rest = {key: x for key, x in kept().items() if not key.startswith(blob)}
    assert np.allclose(answer(model), in_torch(rest), atol=1e-5)


def test_own_tensors_that_lead_to_nan_are_dropped_and_the_global_model_answers(model, private) -> None:
    huge = {name: np.full_like(x, 3e38) if name.startswith("head/") else x for name, x in kept().items()}
    private.write(TASK.name, huge)
    PersonalTensors(private).refresh(model, TASK)
    assert model.own
    with capture_logs() as logs:
        found = answer(model)
    assert np.allclose(found, in_torch({}), atol=1e-5)
    assert model.own == {}
    assert logs[0]["event"] == "personal_tensors_not_finite"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half a file"])
def test_a_damaged_file_is_no_reason_to_stop(tmp_path, model, private, content: bytes) -> None:
    (tmp_path / "private" / f"{TASK.name}.npz").write_bytes(content)
    PersonalTensors(private).refresh(model, TASK)
    assert np.allclose(answer(model), in_torch({}), atol=1e-5)


def test_own_set_by_hand_is_checked_too(model) -> None:
    model.own = {"head/fc2.bias": np.zeros(4, np.float32), "encoder/acc/fc.bias": np.zeros(8, np.float32)}
    assert model.own == {}
    defaults = model.defaults()
    state = flatten({blob: global_state()[blob] for blob in OWN})
    assert defaults.keys() == state.keys()
    assert all(np.array_equal(defaults[name], state[name]) for name in state)
    model.own = {name: x.astype(np.float64) for name, x in unflatten(defaults)["head"].items()}
    assert np.allclose(answer(model), in_torch({}), atol=1e-5)


@pytest.mark.long
def test_a_bundle_made_before_loads_and_ignores_what_is_kept(tmp_path, private) -> None:
    task = TASK.model_copy(update={"config": {}})
    manifest, files = unpack(make_bundle(task, global_state(), Lineage(3, 3, "0" * 64, None, {}))[0])
    fields = json.loads(manifest.model_dump_json(exclude_none=True))
    assert fields.pop("overridable") == []
    old = put(tmp_path / "old", pack(BundleManifest.model_validate(fields), files))
    private.write(TASK.name, kept())
    PersonalTensors(private).refresh(old, TASK)  # the task has become personal since
    assert old.own == {}
    assert old.defaults() == {}
    assert np.allclose(answer(old), in_torch({}), atol=1e-5)


def test_a_manifest_that_promises_what_the_graph_has_not_is_refused(tmp_path, data) -> None:
    manifest, files = unpack(data)
    wrong = manifest.model_copy(update={"overridable": ("head/fc3.bias",)})
    with pytest.raises(Refused, match="overridable, the ONNX model does not"):
        put(tmp_path / "wrong", pack(wrong, files))


def judged() -> ScoredWindows:
    x, present = windows()
    covered = {name: np.ones((6, 20), bool) for name in x}
    batch = Windows(np.zeros(6), x, covered, present, np.full(6, -1))
    quality = Quality(np.ones((6, 2), np.float32), np.zeros((6, 2, len(REASONS)), bool))
    return ScoredWindows(TASK, batch, quality, SystemClock().now())


async def test_a_prediction_says_that_it_is_personal(tmp_path, data, private) -> None:
    output = tmp_path / "p.jsonl"
    put(tmp_path / "model", data)
    async with predicting(Inference(InferSettings(output=output), SystemClock(), private)) as inference:
        inference.activate(await inference.load(tmp_path / "model"))
        inference.enqueue(judged())
        await until(lambda: inference.predictions == 6)
        assert inference.model.own is False
        private.write(TASK.name, kept())
        inference.enqueue(judged())
        await until(lambda: inference.predictions == 12)
        assert inference.model.own is True
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line.get("personal") for line in lines] == [None] * 6 + [True] * 6
    assert np.allclose([line["probabilities"] for line in lines[6:]], in_torch(kept()), atol=1e-4)


async def test_an_agent_predicts_with_what_its_learner_writes(tmp_path, data) -> None:
    put(tmp_path / "model", data)
    write_toy(tmp_path, 30)
    settings = AgentSettings(
        fleet="f",
        device="d",
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        source=({"kind": "replay", "file": str(tmp_path / "toy.npz")},),
    )
    for path in (settings.state_dir, settings.cache_dir, settings.state_dir / "private"):
        path.mkdir()
    clock = SystemClock()
    agent = open_agent(settings, open_sources(settings, tmp_path / "agent.toml", None, clock), clock)
    try:
        agent.storage.private.write(TASK.name, kept())
        async with predicting(agent.inference) as inference:
            inference.activate(await inference.load(tmp_path / "model"))
            inference.enqueue(judged())
            await until(lambda: inference.predictions)
    finally:
        agent.close()
    assert agent.inference.last["personal"] is True
