"""``lichen simulate`` with backbones: features of devices, to the bit; what it says of bad files."""

import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

import lichen
from edge_agent.config.agent import AgentSettings
from edge_agent.features.backbones import Backbones
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.sources.registry import open_sources
from edge_agent.windows.collector import Collector
from lichen.api.task_input import read_task
from lichen.backbones.features import WindowFeatures, open_features
from lichen_lab.simulation import python_api
from lichen_lab.simulation.cli import app
from lichen_lab.simulation.training.inputs import read_device
from lichen_lab.simulation.training.runner import simulate
from models.backbones import files
from models.backbones.views import announced
from models.contract import WindowSet
from models.data.streams.recording import Recording, Stream, write_npz
from protocol.bundle import unpack
from protocol.errors import Misconfigured
from protocol.messages import BlobRef
from protocol.tasks.task import Task
from runtime.clock import SystemClock
from runtime.concurrency.signals import Signal
from runtime.process.daemon import Progress
from runtime.storage.blob_store import BlobStore
from tests.support.backbones import HEIGHT, WIDTH, D, backbone, quantized, write
from tests.support.services import beside, until

IMAGES, HZ = 40, 5
TASK_TOML = """
name = "looks"
labels = ["dark", "bright"]
window = { length_s = 0.4, stride_s = 0.2 }
network = { kind = "linear" }
rounds = { count = 2 }
config = { batch = 16, lr = 0.3 }

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


def recording(path: Path, seed: int) -> None:
    """Noise, bright in every other second: (images, pixels)."""
    t = 0.05 + np.arange(IMAGES) / HZ  # no image is at the edge of a window
    bright_B = (t.astype(int) + seed) % 2
    noise = np.random.default_rng(seed).integers(0, 128, (IMAGES, HEIGHT * WIDTH))
    pixels = (noise + 127 * bright_B[:, None]).astype(np.uint8)
    change_t = np.arange(0, IMAGES / HZ)
    y = (change_t.astype(np.int64) + seed) % 2
    write_npz(path, Recording({"camera": Stream(t, pixels, size=(1, HEIGHT, WIDTH))}, change_t, y))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "task.toml").write_text(TASK_TOML)
    write(tmp_path / "eye.onnx", quantized())
    (tmp_path / "data").mkdir()
    for number, name in enumerate(("barn", "mill", "test")):
        recording(tmp_path / "data" / f"{name}.npz", number)
    return tmp_path


class AtHand:
    """In place of a fetcher: the file is here."""

    def __init__(self, store: BlobStore, file: Path) -> None:
        self.store, self.file = store, file

    async def fetch(self, ref: BlobRef, timeout_s: float) -> None:
        del timeout_s
        if not self.store.has(ref.digest):
            self.store.put(self.file.read_bytes())


async def stored_by_a_device(task: Task, place: Path, file: Path) -> WindowSet:
    """The windows that a device stores while the recording is replayed to it: a few are cut at a time."""
    settings = AgentSettings.model_validate({
        "fleet": "f", "device": "d", "state_dir": place / "state", "cache_dir": place / "cache",
        "source": [{"kind": "replay", "file": str(file), "speed": 5}], "windows": {"lateness_s": 0.05},
    })  # fmt: skip
    store, zygote, clock = BlobStore(place / "cache" / "blobs"), ZygoteClient(), SystemClock()
    fetcher: Any = AtHand(store, place / "eye.onnx")
    made = Backbones(settings, store, fetcher, zygote, clock, Signal())
    cuts: list[int] = []
    sources = open_sources(settings, place / "agent.toml", task, clock)
    collector = Collector(
        settings, sources, clock=clock, listener=lambda scored: cuts.append(len(scored.windows)),
        changed=Signal(), progress=Progress(), features=made,
    )  # fmt: skip
    async with beside(made.run()):
        work = await collector.use(task)
        await until(lambda: made.status()["backbones"]["camera"]["why"] == "ok")
        async with beside(collector.run_source(sources[0]), collector.run()):
            await until(lambda: collector.finished and sum(cuts) >= IMAGES - 3)
            work.store.commit()
            found = work.store.recent(1000)
    await zygote.aclose()
    assert len(cuts) > 1, "they were cut a few at a time"
    return found


async def test_features_of_a_simulation_are_those_of_a_device_to_the_bit(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: dict[str, Any] = {}

    def listening(task: Task, devices: Mapping[str, WindowSet], *given: Any, **more: Any) -> Any:
        heard.update(task=task, devices=devices)
        return simulate(task, devices, *given, **more)

    monkeypatch.setattr(python_api, "simulate", listening)
    lichen.simulate(place / "task.toml", place / "data", rounds=1)
    ours = {z_D.tobytes() for z_D in heard["devices"]["barn"].x["camera"]}
    assert len(ours) >= IMAGES - 1
    task = announced(files.prepare(read_toml(place), place))
    assert heard["task"].modalities == task.modalities
    device = await stored_by_a_device(task, place, place / "data" / "barn.npz")
    theirs = {z_D.tobytes() for z_D in device.x["camera"]}
    assert len(theirs) >= IMAGES / 2
    assert theirs <= ours


def read_toml(place: Path) -> Task:
    return read_task(place / "task.toml")[0]


def test_the_command_and_the_function_train_on_features_and_predict_from_images(place: Path) -> None:
    words = ["--task", str(place / "task.toml"), "--data", str(place / "data")]
    done = CliRunner().invoke(app, [*words, "--test", str(place / "data" / "test.npz"), "--format", "json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["devices"] == ["barn", "mill"]
    assert report["rounds"][-1]["metrics"]["accuracy"] >= 0.9
    assert report["bytes_up"] < 2000, "of heads"
    found = lichen.simulate(place / "task.toml", place / "data", test=place / "data" / "test.npz")
    assert found.accuracy == report["rounds"][-1]["metrics"]["accuracy"]
    images = np.stack([np.full((1, HEIGHT, WIDTH), level) for level in (40.0, 220.0)])
    assert found.predict({"camera": images}) == ["dark", "bright"]
    said = found.predict(place / "data" / "test.npz")
    assert {"dark", "bright"} == set(said)
    with pytest.raises(Misconfigured, match=r"camera: shape \(2, 16\).*needs \(2, 1, 30\)"):
        found.predict({"camera": np.zeros((2, D))})


@pytest.mark.long
def test_the_exported_bundle_has_the_head_alone_and_one_file_has_both(place: Path) -> None:
    write(place / "eye.onnx")
    found = lichen.simulate(place / "task.toml", place / "data", rounds=1)
    manifest, _ = unpack(found.export(place / "model.bundle").read_bytes())
    assert manifest.modalities == announced(files.prepare(read_toml(place), place)).modalities
    whole = found.export(place / "whole.onnx", merge_backbone=True)
    raw = read_device(
        place / "data" / "test.npz", WindowFeatures(open_features(read_toml(place), place).cut, {})
    )[0]
    inputs = {"present": np.ones((len(raw), 1), np.float32), "camera": raw.x["camera"]}
    (p_BK,) = onnxruntime.InferenceSession(whole).run(["probabilities"], inputs)
    np.testing.assert_allclose(p_BK, found.probabilities(place / "data" / "test.npz"), atol=1e-4)
    with pytest.raises(Misconfigured, match="calibrate: it is for a bundle"):
        found.export(whole, place / "data" / "test.npz", merge_backbone=True)


def test_arrays_and_files_give_the_same_history_and_a_missing_image_stays_missing(place: Path) -> None:
    task = read_toml(place)
    features, raw = open_features(task, place), {}
    for name in ("barn", "mill", "test"):
        windows, _ = read_device(place / "data" / f"{name}.npz", WindowFeatures(features.cut, {}))
        raw[name] = {"camera": windows.x["camera"], "label": windows.y_B}
    by_files = lichen.simulate(place / "task.toml", place / "data", rounds=1)
    table = tomllib.loads(TASK_TOML)
    table["modalities"][0]["backbone"]["file"] = str(place / "eye.onnx")
    by_arrays = lichen.simulate(table, raw, rounds=1)
    assert by_arrays.history == by_files.history
    there_BM = windows.present_BM.copy()
    there_BM[3] = False
    found = features.of(replace(windows, present_BM=there_BM), "test")
    assert not found.x["camera"][3].any()
    assert found.x["camera"][4].any()
    assert not found.present_BM[3].any()


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda file: file.unlink(), r"modality 'camera': backbone: .*eye.onnx: No such file"),
        (lambda file: write(file, backbone(domain="com.example")), r"an operator of 'com\.example'"),
        (
            lambda file: write(file, backbone(("b", HEIGHT, WIDTH, 1))),
            r"windows of 'camera' are \(B, 1, 6, 5\)",
        ),
    ],
)
def test_a_file_that_cannot_be_a_backbone_is_refused_as_by_task_check(
    place: Path, break_it: Any, words: str
) -> None:
    break_it(place / "eye.onnx")
    with pytest.raises(Misconfigured, match=words):
        lichen.simulate(place / "task.toml", place / "data")
    done = CliRunner().invoke(app, ["--task", str(place / "task.toml"), "--data", str(place / "data")])
    assert isinstance(done.exception, Misconfigured)


def test_another_file_than_the_pinned_one_and_no_onnx_runtime_are_said(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place / "task.toml"
    text = TASK_TOML.replace('"eye.onnx" }', f'"eye.onnx", sha256 = "{"0" * 64}" }}')
    file.write_text(text)
    with pytest.raises(Misconfigured, match=r"its SHA-256 is not 0000.*backbone\.sha256"):
        lichen.simulate(file, place / "data")
    file.write_text(TASK_TOML)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Misconfigured, match=r"needs onnxruntime: pip install 'lichen\[infer\]'"):
        lichen.simulate(file, place / "data")


def test_a_backbone_that_fails_on_a_window_names_the_device(place: Path) -> None:
    """A sum of pixels beyond float32."""
    write(place / "eye.onnx", backbone(w_VD=np.full((HEIGHT * WIDTH, D), 1e37, np.float32)))
    with pytest.raises(Misconfigured, match=r"barn\.npz: backbone of camera: .* is not finite"):
        lichen.simulate(place / "task.toml", place / "data")


def test_progress_of_many_windows_is_said_and_none_of_few(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    windows = read_device(place / "data" / "barn.npz", open_features(read_toml(place), place, said.append))[0]
    assert not said
    monkeypatch.setattr("lichen.backbones.features._SAY_EVERY_S", 0.0)
    read_device(place / "data" / "barn.npz", open_features(read_toml(place), place, said.append))
    assert said[-1] == f"features: {len(windows)} windows so far, now of {place / 'data' / 'barn.npz'}"


def test_noise_on_features_is_refused_with_a_data_set(place: Path) -> None:
    words = ["--dataset", "av-mnist", "--task", str(place / "task.toml")]
    done = CliRunner().invoke(app, [*words, "--noisy-rounds", "0.5", "--snr-db", "3"])
    assert "--noisy-rounds: noise is of what sensors deliver, and of camera" in str(done.exception)
