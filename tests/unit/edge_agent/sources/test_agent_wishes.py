"""What a device wants to read and learn, what it says of that, and which parts of a version it pulls."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from structlog.testing import capture_logs

from edge_agent.agent import Agent
from edge_agent.config.agent import AgentSettings, LearnSettings, read
from edge_agent.opening import open_agent
from edge_agent.sources import LabelBatch
from edge_agent.sources.registry import open_sources
from edge_agent.tasks.task_store import check_task, first_task
from edge_agent.training.model_blobs import ModelBlobs
from models.data.labels.labels import TargetTrack
from models.data.streams.recording import Recording, write_npz
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec
from protocol.frames.tensors import encode as encode_tensor
from protocol.messages import BlobRef, ModalityState, Offer, State, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Modality, Target
from runtime.clock import SystemClock
from runtime.storage.blob_store import BlobStore
from tests.support.agent.data import toy_recording, toy_task
from tests.support.services import beside, until
from tests.support.tasks import stream, task_toml
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, config, make

SIDE = Target(name="side", labels=("left", "right"))
PICTURE = Target(name="picture", kind="generation", modality="gyr")
ACC, GYR = toy_task().modalities
ROUTED = toy_task(method="disentafl")
SEVERAL = toy_task(method="disentafl", targets=(SIDE, PICTURE))
LEARN = "[learn]\n"
SOURCE = BASIC[BASIC.index("[[source]]") :]
NAMES = BASIC[: BASIC.index("[[source]]")]


def agent_of(folder, learn: str = "", *, made: Recording | None = None, **targets: TargetTrack) -> Agent:
    path = config(folder, f"{NAMES}[learn]\n{learn}\n{SOURCE}speed = 10000\n")
    made = made or toy_recording(30)
    write_npz(folder / "toy.npz", Recording(made.streams, made.label_t, made.label, targets))
    settings = read(path)
    for folder_ in (settings.state_dir, settings.cache_dir):
        folder_.mkdir(exist_ok=True)
    return open_agent(settings, open_sources(settings, path, None, SystemClock()), SystemClock())


@asynccontextmanager
async def collected(agent: Agent) -> AsyncIterator[State]:
    """The state when the recording has been played; then the agent is closed."""
    work = agent.collector
    async with beside(work.run(), work.run_source(agent.sources[0])):
        await until(lambda: work.finished)
        await until(lambda: agent.tasks.workspace.store.snapshot().total > 15)
        yield agent.reporter.state()
    agent.close()


@pytest.mark.parametrize(
    ("learn", "words"),
    [
        ("target = ['a']", "learn.target: unknown key; did you mean 'targets'"),
        ("targets = []", "learn.targets: .*at least 1"),
        ("inputs = ['a b']", "learn.inputs.0"),
    ],
)
def test_a_wrong_wish_names_its_key(tmp_path, learn, words):
    with pytest.raises(Misconfigured, match=words):
        read(config(tmp_path, f"{NAMES}[learn]\n{learn}\n{SOURCE}"))


@pytest.mark.parametrize(
    ("task", "learn", "words"),
    [
        (
            ROUTED,
            LearnSettings(inputs=("cam",)),
            "nothing to read: it delivers acc, gyr, the task reads acc, gyr",
        ),
        (ROUTED, LearnSettings(inputs=("cam",)), "learn.inputs names cam"),
        (ROUTED, LearnSettings(targets=("heart",)), "nothing to learn: learn.targets names heart"),
        (
            toy_task(
                method="disentafl",
                modalities=(
                    ACC.model_copy(update={"input": False}),
                    GYR.model_copy(update={"input": False}),
                    Modality(name="cam", channels=1, rate_hz=1),
                ),
            ),
            LearnSettings(),
            "nothing to read: it delivers acc, gyr, the task reads cam",
        ),
        (
            toy_task(targets=(SIDE,)),
            LearnSettings(),
            "method 'qqr': targets, .* are for methods that predict",
        ),
    ],
)
def test_a_device_with_nothing_to_read_or_to_learn_says_why(tmp_path, task, learn, words):
    agent = make(tmp_path)
    with pytest.raises(Misconfigured, match=words):
        check_task(task, agent.sources, learn)
    agent.close()


async def test_wishes_that_the_task_does_not_know_are_errors_in_a_task_file_and_else_warnings(tmp_path):
    agent = agent_of(tmp_path, 'targets = ["label", "heart"]')
    with capture_logs() as logs:
        await agent.work.act_on(TaskAnnouncement.of(ROUTED))
    assert any("learn.targets: heart" in str(log.get("why")) for log in logs)
    (tmp_path / "task.toml").write_text(
        task_toml(name="toy", streams={"acc": stream(3, 50), "gyr": stream(2, 25)})
    )
    settings = agent.settings.model_copy(update={"task_file": tmp_path / "task.toml"})
    with pytest.raises(
        Misconfigured, match=r"learn.targets: heart: unknown to task .*\(label\) \(.*task.toml\)"
    ):
        first_task(settings, agent.sources)
    wish = LearnSettings(targets=("heart",))
    agent.tasks.settings = settings.model_copy(update={"learn": wish})
    with pytest.raises(Refused, match="nothing to learn"):
        await agent.work.act_on(TaskAnnouncement.of(SEVERAL))
    assert "learn.targets names heart" in agent.tasks.task_mismatch
    agent.close()


async def test_a_task_without_targets_is_told_in_the_same_bytes_as_ever(tmp_path):
    agent = agent_of(tmp_path)
    await agent.work.act_on(TaskAnnouncement.of(toy_task()))
    fresh = json.loads(encode(agent.reporter.state()))
    assert set(fresh) == {
        "kind",
        "status",
        "device",
        "roles",
        "modalities",
        "windows",
        "chunk_bytes",
        "version",
    }
    assert set(fresh["modalities"]) == {"acc", "gyr"}, "also before the first window"
    async with collected(agent) as state:
        assert state.targets is None


async def test_a_routed_device_says_what_its_windows_show(tmp_path):
    side = TargetTrack(np.array([0.0]), np.array([1.0]))
    agent = agent_of(tmp_path, side=side)
    await agent.work.act_on(TaskAnnouncement.of(SEVERAL))
    assert agent.reporter.state().targets == ()
    assert not agent.reporter.state().modalities
    async with collected(agent) as state:
        assert state.targets == ("label", "side", "picture")
        assert tuple(state.modalities) == ("acc", "gyr")
        assert state.windows == agent.tasks.workspace.store.snapshot().total, "each has at least the picture"
        status = agent.status()
        assert status["reads"] == ["acc", "gyr"]
        assert status["learns"] == ["label", "side", "picture"]
        assert status["windows_to_learn_from"] == state.windows


async def test_a_device_without_labels_says_what_it_is_to_be_served(tmp_path):
    """Else the coordinator of a method with routes would have no bundle for it."""
    agent = agent_of(
        tmp_path, 'targets = ["label"]', made=Recording({"acc": toy_recording(30).streams["acc"]})
    )
    await agent.work.act_on(TaskAnnouncement.of(SEVERAL))
    async with collected(agent) as state:
        assert (tuple(state.modalities), state.targets, state.windows) == (("acc",), None, 0)
        assert agent.status()["learns"] == []


async def test_what_is_not_wished_for_is_not_even_collected(tmp_path):
    agent = agent_of(tmp_path, 'inputs = ["acc"]\ntargets = ["label"]')
    await agent.work.act_on(TaskAnnouncement.of(SEVERAL))
    async with collected(agent) as state:
        store = agent.tasks.workspace.store
        assert tuple(state.modalities) == ("acc",)
        assert state.targets is None
        assert not store.recent(100, labelled=False).present_BM[:, 1].any()
        assert state.windows == store.snapshot().labelled


async def test_a_task_that_gains_a_target_keeps_the_windows_and_the_label_that_holds(tmp_path):
    """The label was said once, before the task knew of it."""
    agent = agent_of(tmp_path, side=TargetTrack(np.array([0.0]), np.array([1.0])))
    await agent.work.act_on(TaskAnnouncement.of(ROUTED))
    windower = agent.tasks.workspace.windower
    windower.feed(LabelBatch(np.zeros(1), np.ones(1), "side"), 0.0)
    async with collected(agent) as before:
        assert before.targets is None
        store = agent.tasks.workspace.store
        await agent.work.act_on(TaskAnnouncement.of(SEVERAL))
        work = agent.tasks.workspace
        assert (work.store, work.windower) == (store, windower)
        assert store.snapshot().total > 15
        state = agent.reporter.state()
        assert state.targets == ("label", "picture"), "the generated one is in old windows too"


def test_another_profile_is_said_without_waiting_for_the_idle_time(tmp_path):
    agent = make(tmp_path)
    session, now = agent.reporter, SystemClock().now()
    before = State(status="online", device="d", modalities={"acc": ModalityState()}, windows=5)
    session._sent, session._sent_at = before, now - agent.settings.state_every_s - 1
    assert session.is_due(before.model_copy(update={"targets": ("label", "side")}))
    assert session.is_due(before.model_copy(update={"modalities": {}}))
    assert not session.is_due(before.model_copy(update={"windows": 4}))
    agent.close()


class Remote:
    """A fetcher whose other end has some blobs; what was pulled, in order."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs, self.has, self.pulled = blobs, {}, []

    async def fetch(self, ref: BlobRef, _timeout_s: float):
        if not self.blobs.has(ref.digest):
            self.pulled.append(self.has[ref.digest][0])
            self.blobs.put(self.has[ref.digest][1])
        return self.blobs.path(ref.digest)

    def offer(self, task, **values: float) -> Offer:
        """A version of blobs of some size, each filled with its value."""
        refs = {}
        for name, value in values.items():
            tensor = np.full(20_000, value, np.float32)
            data = encode_frame(BlobHeader(name=name), {f"{name}/w": encode_tensor(tensor, Codec.FLOAT32)})
            refs[name] = self._put(name, data)
        manifest = self._put("manifest", encode(Manifest(task=task, method="m", version=1, blobs=refs)))
        return Offer(task=task, round=1, base=manifest.digest, base_size=manifest.size, closes_in_s=60)

    def _put(self, name: str, data: bytes) -> BlobRef:
        ref = BlobStore(self.blobs.path("0" * 64).parents[2] / "there").put(data)
        self.has[ref.digest] = name, data
        return ref


def model_blobs_of(folder) -> tuple[ModelBlobs, Remote]:
    """With room for less than one route."""
    settings = AgentSettings(fleet="f", device="d", source=({},), cache_dir=folder, blob_budget_bytes=65536)
    blobs = BlobStore(folder / "blobs")
    remote = Remote(blobs)
    return ModelBlobs(settings, blobs, remote), remote


async def test_a_router_sees_its_blobs_before_the_rest_is_pulled_and_nothing_is_pulled_twice(tmp_path):
    blobs, remote = model_blobs_of(tmp_path)
    offer = remote.offer("t", gate=1, left=2, right=3, head=4)
    seen = []

    async def choose(first):
        seen.append((list(remote.pulled), set(first)))
        return ("gate", "right", "head")

    state = await blobs.fetch_routed(offer, ("gate",), choose)
    assert seen == [(["manifest", "gate"], {"gate"})]
    assert remote.pulled == ["manifest", "gate", "right", "head"]
    assert {name: float(tensors[f"{name}/w"][0]) for name, tensors in state.items()} == {
        "gate": 1,
        "right": 3,
        "head": 4,
    }
    remote.pulled.clear()
    await blobs.fetch_routed(remote.offer("t", gate=9, left=2, right=3, head=4), ("gate",), choose)
    assert remote.pulled == ["manifest", "gate"], "the first look does not make room for itself"


async def test_a_choice_of_what_the_version_lacks_is_refused_by_name(tmp_path):
    blobs, remote = model_blobs_of(tmp_path)
    offer = remote.offer("t", gate=1)

    async def choose(_first):
        return ("gate", "wrong")

    with pytest.raises(Refused, match="lacks the blob 'wrong'") as refused:
        await blobs.fetch_routed(offer, ("gate",), choose)
    assert refused.value.reason is Reason.WRONG_TENSORS
    with pytest.raises(Refused, match="lacks the blob 'door'"):
        await blobs.fetch_routed(offer, ("door",), choose)
