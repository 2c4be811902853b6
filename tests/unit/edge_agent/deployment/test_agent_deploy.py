import asyncio
import json
import re
import signal
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest

from edge_agent.config.agent import AgentSettings, DeploySettings, InferSettings, TrialSettings
from edge_agent.deployment.bundle_store import CURRENT
from edge_agent.deployment.service import DeploymentService
from edge_agent.inference.onnx_models.compatibility import require_compatible
from edge_agent.inference.onnx_models.exit_words import exit_words
from edge_agent.inference.service import MAX_BATCHES, Inference, RotatingLines
from edge_agent.trust.updater import MetadataUpdater
from edge_agent.windows.quality.meter import QualityMeter, ScoredWindows
from models.data.streams.batches import LabelBatch, SampleBatch
from models.data.streams.windows import Windower
from protocol.bundle import unpack
from protocol.errors import Reason, Refused, Transient
from protocol.messages import ModelPointer
from runtime.clock import SystemClock
from runtime.concurrency.signals import Signal
from tests.support.agent.bundle import bundle, ref_of, tiny_onnx
from tests.support.agent.data import toy_recording, toy_task
from tests.support.agent.parts import collector_of
from tests.support.identity.trust import DEVICE, FLEET, ME
from tests.support.services import beside, until

TASK = toy_task()


class Shelf:
    """Stands in for the fetcher: blobs are files, or not there yet."""

    def __init__(self, folder):
        self.folder = folder
        self.fetched = []
        self.forgotten = []

    def put(self, data):
        (self.folder / ref_of(data).digest).write_bytes(data)
        return data

    async def fetch(self, ref, timeout_s):
        self.fetched.append(ref.digest)
        path = self.folder / ref.digest
        if not path.exists():
            raise Transient(f"not here in {timeout_s} s")
        return path

    def forget(self, digest):
        self.forgotten.append(digest)


class Source:
    name = "fake"
    channels = {"acc": 3, "gyr": 2}  # noqa: RUF012 - a fake


def pointer(data, version=1, task="toy"):
    return ModelPointer(task=task, version=version, bundle=ref_of(data))


def judged(task=TASK, *, masked=False):
    recording = toy_recording(30)
    windower = Windower(task)
    windower.feed(LabelBatch(recording.label_t, recording.label), 0.0)
    for name, stream in recording.streams.items():
        if not (masked and name == "gyr"):
            windower.feed(SampleBatch(name, stream.t, stream.values), 0.0)
    windows = windower.flush()
    return ScoredWindows(task, windows, QualityMeter(task).judge(windows), SystemClock().now())


@asynccontextmanager
async def device(folder, infer=None, first=None, trust_clock=None):
    folder.mkdir(exist_ok=True)
    infer = infer or InferSettings(output=folder / "predictions.jsonl")
    settings = AgentSettings(
        fleet=FLEET, device=DEVICE, state_dir=folder, cache_dir=folder, source=({},), infer=infer
    )
    clock = SystemClock()
    collector = collector_of(settings, [Source()], clock)
    await collector.use(TASK)
    inference = Inference(settings.infer, clock)
    shelf = Shelf(folder)
    deployment = DeploymentService(
        folder / "models",
        shelf,
        inference,
        collector,
        fetch_timeout_s=1,
        changed=Signal(),
        trust=MetadataUpdater(folder / "trust", first, shelf, trust_clock or clock, 1, ME),
        settings=DeploySettings(trial=TrialSettings(windows=1, max_latency_ratio=1000)),
    )
    deployment.shelf, deployment.inference = shelf, inference
    services = (
        deployment.run,
        deployment.executor.run,
        partial(inference.run, observe=deployment.executor.observe),
    )
    async with beside(*services, forever=True):
        yield deployment
    collector.workspace.store.close()


def committed(deployment, version):
    kept = deployment.record.committed
    return kept is not None and kept.version == version


async def deploy(deployment, data, version=1, **changes):
    """A model is announced, and passes its trial of one batch."""
    deployment.offer(pointer(deployment.shelf.put(data), version).model_copy(update=changes))
    await until(lambda: is_running(deployment, data), 20)
    await passed(deployment, version)


async def passed(deployment, version):
    await until(lambda: (model := deployment.inference.model) and model.manifest.version == version, 20)
    deployment.inference.enqueue(judged())
    await until(lambda: committed(deployment, version), 20)


def lines(folder):
    path = folder / "predictions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_a_model_is_pulled_checked_and_predicts_and_is_there_with_no_network(tmp_path):
    async with device(tmp_path) as deployment:
        data = deployment.shelf.put(bundle(TASK, 3))
        deployment.offer(pointer(data, 3))
        await until(lambda: deployment.inference.model, 20)
        deployment.inference.enqueue(judged())
        deployment.inference.enqueue(judged(masked=True))
        await until(lambda: deployment.inference.predictions >= 40)
    found = lines(tmp_path)
    assert found[0]["version"] == 3
    assert found[0]["present"] == {"acc": True, "gyr": True}
    assert found[-1]["present"] == {"acc": True, "gyr": False}
    assert found[0]["t"] == 2.56
    assert found[0]["truth"] == "slow"
    assert found[0]["label"] in TASK.labels
    assert sum(found[0]["probabilities"]) == pytest.approx(1, abs=1e-3)
    assert set(found[0]) == {
        "t",
        "wall",
        "label",
        "probabilities",
        "present",
        "quality",
        "truth",
        "version",
        "latency_ms",
    }
    async with device(tmp_path) as again:
        again.shelf.folder = tmp_path / "nothing"
        await until(lambda: again.inference.model, 20)
        assert again.inference.model.manifest.version == 3
        assert again.shelf.fetched == []


async def test_what_does_not_fit_is_refused_in_words_and_the_old_one_stays(tmp_path):
    async with device(tmp_path) as deployment:
        await deploy(deployment, bundle(TASK, 5), 5)
        longer = toy_task(window={"length_s": 4})
        for data, version, words_ in (
            (bundle(TASK, 4), 4, "older than version 5"),
            (bundle(toy_task(name="other"), 6), 6, "for task 'other'"),
            (bundle(longer, 6), 6, "channels and 200 samples"),
            (bundle(TASK, 7), 6, "announced as 6"),
            (bundle(TASK, 6, content=b"not onnx"), 6, "does not run here.*does not load"),
            (bundle(TASK, 6, content=tiny_onnx(TASK, samples=64)), 6, "ONNX model's input 'acc' is"),
            (bundle(TASK, 6, content=tiny_onnx(TASK, present="mask")), 6, "ONNX model's inputs are"),
            (b"PK nothing", 6, "malformed"),
        ):
            deployment.last_refusal = ""
            deployment.offer(pointer(deployment.shelf.put(data), version))
            await until(lambda: deployment.last_refusal, 20)
            assert re.search(words_, deployment.last_refusal), deployment.last_refusal
            assert deployment.inference.model.manifest.version == 5
        before = len(deployment.shelf.fetched)
        deployment.offer(pointer(data, version))
        await asyncio.sleep(0.05)
        assert len(deployment.shelf.fetched) == before, "what was refused is not pulled again"
        assert deployment.report().phase == "refused"
        await deploy(deployment, bundle(TASK, 6), 6)
        assert deployment.inference.model.manifest.version == 6
        assert deployment.report().phase == "committed"
        models = tmp_path / "models"
        await until(lambda: len([p for p in models.iterdir() if p.is_dir()]) == 2)
        folders = sorted(p.name for p in models.iterdir() if p.is_dir())
        assert folders == sorted(deployment.record.digests)


async def test_another_bundle_of_the_same_version_is_taken_as_the_device_s_route_has_changed(tmp_path):
    part = toy_task(modalities=TASK.modalities[:1])
    only = bundle(part, 5)
    async with device(tmp_path) as deployment:
        for data in (bundle(TASK, 5), only):
            await deploy(deployment, data, 5)
        assert deployment.inference.model.names == ("acc",)
        deployment.inference.enqueue(judged())
        await until(lambda: lines(tmp_path)[-1]["present"] == {"acc": True})


def is_running(deployment, data):
    model = deployment.inference.model
    return model is not None and model.digest == ref_of(data).digest


async def test_a_damaged_model_falls_back_to_the_one_before(tmp_path):
    async with device(tmp_path) as deployment:
        for version in (1, 2):
            await deploy(deployment, bundle(TASK, version), version)
        newest = deployment.record.committed.digest
    (tmp_path / "models" / newest / "model.onnx").write_bytes(b"half a mod")
    async with device(tmp_path) as again:
        await until(lambda: again.inference.model, 20)
        assert again.inference.model.manifest.version == 1


async def test_a_broken_current_file_is_no_reason_to_die(tmp_path):
    (tmp_path / "models").mkdir(parents=True)
    (tmp_path / "models" / CURRENT).write_text("{")
    async with device(tmp_path) as deployment:
        deployment.offer(pointer(deployment.shelf.put(bundle(TASK)), 1))
        await until(lambda: deployment.inference.model, 20)


async def test_a_bundle_that_is_not_there_yet_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_agent.deployment.service._RETRY_S", 0.05)
    async with device(tmp_path) as deployment:
        data = bundle(TASK)
        deployment.offer(pointer(data))
        await until(lambda: len(deployment.shelf.fetched) >= 2)
        deployment.shelf.put(data)
        await until(lambda: deployment.inference.model, 20)


async def test_when_inference_is_off_nothing_is_pulled(tmp_path):
    async with device(tmp_path, InferSettings(enabled=False)) as deployment:
        deployment.offer(pointer(deployment.shelf.put(bundle(TASK))))
        await asyncio.sleep(0.1)
        assert deployment.shelf.fetched == []
        assert "enabled" in deployment.inference.disabled_reason


def test_fit_names_what_is_missing():
    manifest, _ = unpack(bundle(TASK))
    require_compatible(manifest, TASK, ("gyr",))
    with pytest.raises(Refused, match="this device has none of them") as refused:
        require_compatible(manifest, TASK, ())
    assert refused.value.reason is Reason.WRONG_MODALITY
    with pytest.raises(Refused, match="reads gyr, which task 'toy' does not have"):
        require_compatible(manifest, toy_task(modalities=TASK.modalities[:1]), ("acc",))
    with pytest.raises(Refused, match="labels"):
        require_compatible(manifest, toy_task(labels=("a", "b", "c")), ("acc",))


def test_a_process_that_dies_of_a_signal_is_explained():
    assert "SIGILL" in exit_words(-signal.SIGILL, "")
    assert "another version of onnxruntime" in exit_words(-signal.SIGILL, "")
    assert "SIGSEGV" in exit_words(-signal.SIGSEGV, "boom")
    assert "lichen[infer]" in exit_words(1, "ModuleNotFoundError: No module named 'onnxruntime'")
    assert exit_words(0, "whatever") == ""
    assert "SIGSEGV; install another version of onnxruntime" in exit_words(-signal.SIGSEGV, "", loading=True)
    assert exit_words(-signal.SIGSEGV, "") == "onnxruntime was killed by SIGSEGV", "of the model, perhaps"
    assert "install" not in exit_words(-signal.SIGKILL, "", loading=True), "from outside"
    assert "signal 40" in exit_words(-40, ""), "without a name"


def test_late_windows_are_dropped_oldest_first_and_counted():
    inference = Inference(InferSettings(), SystemClock())
    windows = judged()
    inference.enqueue(windows)
    assert inference.dropped == 0
    inference._model = object()
    for _ in range(MAX_BATCHES + 2):
        inference.enqueue(windows)
    assert inference.dropped == 2 * len(windows.windows)
    inference._thread.shutdown()


def test_predictions_rotate_and_a_bad_disk_is_counted(tmp_path):
    output = RotatingLines(tmp_path / "p.jsonl", 100)
    for k in range(10):
        output.write([f"{k:040d}"])
    output.close()
    kept = (tmp_path / "p.jsonl.1").read_text() + (
        (tmp_path / "p.jsonl").read_text() if (tmp_path / "p.jsonl").exists() else ""
    )
    assert f"{9:040d}" in kept
    assert len(kept) < 300
    (tmp_path / "file").write_text("")
    broken = RotatingLines(tmp_path / "file" / "p.jsonl", 100)
    broken.write(["x"])
    assert broken.failures == 1


def test_half_a_line_that_a_full_disk_left_spoils_no_other(tmp_path):
    output = RotatingLines(tmp_path / "p.jsonl", 1000)
    output.write(["one"])
    output.close()
    with (tmp_path / "p.jsonl").open("a") as file:
        file.write("half of a li")
    output.write(["two"])
    output.write(["three"])
    output.close()
    assert (tmp_path / "p.jsonl").read_text().splitlines() == ["one", "half of a li", "two", "three"]


async def test_low_quality_can_count_as_missing(tmp_path):
    infer = InferSettings(min_quality=0.5, output=tmp_path / "predictions.jsonl")
    async with device(tmp_path, infer) as deployment:
        deployment.offer(pointer(deployment.shelf.put(bundle(TASK))))
        await until(lambda: deployment.inference.model, 20)
        windows = judged()
        windows.quality.quality_BM[:, 0] = np.float32(0.2)
        deployment.inference.enqueue(windows)
        await until(lambda: deployment.inference.predictions)
    assert lines(tmp_path)[0]["present"] == {"acc": False, "gyr": True}
