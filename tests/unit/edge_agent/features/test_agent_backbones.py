"""The device's backbones: fetched once, waited for, refused in words, and run on each window once."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.features.backbones import Backbones
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.tasks.task_store import check_task
from edge_agent.windows.quality.meter import REASONS, Quality
from edge_agent.windows.window_sets import with_a_modality
from models.backbones import files
from models.backbones.views import announced
from models.data.streams.windows import Windows
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.messages import BlobRef
from protocol.tasks.task import Task
from runtime.clock import SystemClock
from runtime.concurrency.signals import Signal
from runtime.storage.blob_store import BlobStore
from tests.support.agent.source import HandSource
from tests.support.backbones import (
    CAMERA,
    HEIGHT,
    WIDTH,
    D,
    backbone,
    backbone_task,
    features_of,
    sensed_by,
    weights,
    with_backbone,
    write,
)
from tests.support.services import beside, until


class Cloud:
    """In place of a fetcher: what is in it can be fetched."""

    def __init__(self, store: BlobStore) -> None:
        self.store, self.blobs, self.asked = store, dict[str, bytes](), list[str]()

    async def fetch(self, ref: BlobRef, timeout_s: float) -> None:
        if self.store.has(ref.digest):
            return
        self.asked.append(ref.digest)
        data = self.blobs.get(ref.digest)
        if data is None:
            raise Transient(f"blob {ref.digest} was not here in {timeout_s:g} s")
        if hashlib.sha256(data).hexdigest() != ref.digest:
            raise Refused(Reason.WRONG_DIGEST, "the chunks' SHA-256 differs")
        self.store.put(data)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    write(tmp_path / "eye.onnx")
    return announced(files.prepare(backbone_task(), tmp_path))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.features.backbones._FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("edge_agent.features.backbones._LAST_PAUSE_S", 0.05)


@asynccontextmanager
async def service(folder: Path, **settings: object) -> AsyncIterator[tuple[Backbones, Cloud]]:
    given = {
        "fleet": "f",
        "device": "d",
        "state_dir": folder / "state",
        "cache_dir": folder / "cache",
        **settings,
    }
    store = BlobStore(folder / "cache" / "blobs")
    cloud, zygote = Cloud(store), ZygoteClient()
    made = Backbones(
        AgentSettings.model_validate(given), store, cloud, zygote, SystemClock(), Signal()  # type: ignore[arg-type]
    )  # fmt: skip
    async with beside(made.run()):
        yield made, cloud
    await zygote.aclose()


def windows(count: int = 3, *, absent: int = 1) -> Windows:
    x = np.random.default_rng(3).uniform(0, 255, (count, 1, HEIGHT * WIDTH)).astype(np.float32)
    present_BM = np.ones((count, 1), np.bool_)
    present_BM[absent] = False
    covered = {"camera": np.repeat(present_BM, HEIGHT * WIDTH, axis=1)}
    return Windows(
        np.arange(count, dtype=np.float64) * 0.2,
        {"camera": x},
        covered,
        present_BM,
        np.zeros(count, np.int64),
    )


def why(made: Backbones) -> str:
    return "; ".join(wait.why for wait in made.waits())


async def test_a_modality_is_missing_until_its_backbone_is_here_and_then_has_features(
    tmp_path: Path, task: Task
) -> None:
    async with service(tmp_path) as (made, cloud):
        made.use(task, ["camera"])
        await until(lambda: len(cloud.asked) > 1)
        before = await made.features(task, windows())
        assert not before.present_BM.any()
        assert before.x["camera"].shape == (3, D, 1)
        assert "backbone of camera" in why(made)
        assert "was not here in" in why(made)
        assert "missing in windows" in why(made)
        assert not made.refusal
        cloud.blobs[cloud.asked[0]] = (tmp_path / "eye.onnx").read_bytes()
        await until(lambda: not why(made))
        given = windows()
        found = await made.features(task, given)
        want = features_of((given.x["camera"] - CAMERA.offset) / CAMERA.scale)
        want[1] = 0
        np.testing.assert_allclose(found.x["camera"][:, :, 0], want, rtol=1e-5, atol=1e-5)
        assert found.present_BM.ravel().tolist() == [True, False, True]
        assert found.covered["camera"].shape == (3, 1)
        assert made.status()["backbones"]["camera"]["windows"] == 2
        asked = len(cloud.asked)
        made.use(task.model_copy(update={"seed": 1}), ["camera"])
        assert (await made.features(task, given)).present_BM.any(), "the same backbone stays open"
        made.blobs.collect((), 0)
        made.use(task.model_copy(update={"modalities": ()}), [])
        made.use(task, ["camera"])
        await until(lambda: not why(made))
        assert len(cloud.asked) == asked, "it is kept while the task needs it"
        made.use(task.model_copy(update={"modalities": ()}), [])
        made.blobs.collect((), 0)
        assert not made.blobs.has(cloud.asked[0])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (backbone(domain="com.example"), r"an operator of 'com.example', which is never accepted"),
        (backbone(("b", 1, 7, WIDTH), weights(35)), "windows of 'camera' are"),
        (backbone(w_VD=weights(features=5)), "it makes 5 features, not 16"),
    ],
)
async def test_a_backbone_that_cannot_be_used_is_refused_in_words_and_not_run(
    tmp_path: Path, task: Task, model: onnx.ModelProto, words: str
) -> None:
    data = model.SerializeToString()
    digest = hashlib.sha256(data).hexdigest()
    lies = with_backbone(task, sha256=digest, size=len(data))
    async with service(tmp_path) as (made, cloud):
        cloud.blobs[digest] = data
        made.use(lies, ["camera"])
        await until(lambda: made.refusal)
        assert "backbone of camera" in made.refusal
        assert words in made.refusal
        assert not (await made.features(lies, windows())).present_BM.any()
        made.use(lies, ["camera", "imu"])
        await until(lambda: "never accepted" in why(made) or words in why(made))
        assert not made.refusal, "the other modality goes on"


async def test_bytes_of_another_digest_are_dropped_and_a_backbone_beyond_the_budget_is_not_fetched(
    tmp_path: Path, task: Task
) -> None:
    async with service(tmp_path) as (made, cloud):
        made.use(task, ["camera"])
        await until(lambda: cloud.asked)
        cloud.blobs[cloud.asked[0]] = b"other bytes"
        await until(lambda: "SHA-256 differs" in why(made))
        assert not made.refusal, "it is tried again"
        assert not made.blobs.names()
    async with service(tmp_path, blob_budget_bytes=1024 * 1024) as (made, cloud):
        large = with_backbone(task, size=2 * 1024 * 1024)
        made.use(large, ["camera"])
        await until(lambda: made.refusal)
        assert "blob_budget_bytes" in made.refusal
        assert not cloud.asked


def test_windows_that_have_no_modality_left_are_dropped_with_their_quality() -> None:
    given = windows(4)
    quality = Quality(np.full((4, 1), 0.25, np.float32), np.zeros((4, 1, len(REASONS)), np.bool_))
    kept, scores = with_a_modality(given, quality)
    assert kept.start_B.tolist() == given.start_B[[0, 2, 3]].tolist()
    assert len(kept.x["camera"]) == len(kept.covered["camera"]) == len(kept.y_B) == 3
    assert scores.quality_BM.ravel().tolist() == [0.25] * 3
    assert scores.found_BMR.shape == (3, 1, len(REASONS))
    several = replace(given, present_BM=np.array([[True, False]] * 4))
    both = Quality(np.full((4, 2), 0.25, np.float32), np.zeros((4, 2, len(REASONS)), np.bool_))
    assert with_a_modality(several, both)[1].quality_BM.tolist() == [[0.25, 1.0]] * 4


def test_a_device_without_onnx_runtime_refuses_a_task_that_it_could_only_read_through_backbones(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera, _ = sensed_by(task)
    source = HandSource({camera.name: HEIGHT * WIDTH})
    check_task(task, [source])
    monkeypatch.setattr("edge_agent.tasks.task_store.has_onnxruntime", lambda: False)
    with pytest.raises(Misconfigured, match=r"backbones of camera need ONNX Runtime.*lichen\[infer\]"):
        check_task(task, [source])
