"""The role ``prototype``: features by ONNX Runtime, prototypes up, no torch; and what may go wrong."""

import asyncio
import gc
import importlib.util
import json
import re
import threading
import weakref
from contextlib import asynccontextmanager
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from edge_agent.cli import main
from edge_agent.inference.onnx_models.encoder_model import MAX_MODEL_BYTES, EncoderModel
from edge_agent.inference.serving import model_server
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.storage.agent_storage import open_storage
from edge_agent.tasks import roles
from edge_agent.training import prototype_maker
from edge_agent.windows.store import WindowStore
from edge_agent.windows.workspace import WindowWorkspace
from models import registry
from models.training.softmax_regression import normalise
from protocol.errors import Refused
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import BlobHeader, Manifest, UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.messages import BlobRef, Offer
from protocol.messages import encode as encode_message
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Modality, Task
from protocol.topics import Kind, Route
from runtime.clock import SystemClock
from runtime.storage.blob_store import BlobStore
from tests.support.agent.data import toy_task
from tests.support.agent.parts import learner_of
from tests.support.agent.serving import InThreads, Liar
from tests.support.services import beside, until
from tests.unit.edge_agent.messaging.test_agent_session import config, make, read
from tests.unit.edge_agent.windows.test_agent_store import windows

TASK = toy_task(network={"feature_dim": 8, "hidden_dim": 8}, config={"quality": "none", "prototype_bits": 32})
D = 8


def graph(modality: str, task: Task = TASK, *, dim: int = D) -> bytes:
    """Mean over time, then a matrix that is an input: an encoder model in every respect but the network's."""
    m = TASK.modality(modality)
    weight = f"encoder/{modality}/w"
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", weight], ["feature"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", m.channels, task.samples(modality)]),
        helper.make_tensor_value_info(weight, TensorProto.FLOAT, [m.channels, dim]),
    ]
    output = helper.make_tensor_value_info("feature", TensorProto.FLOAT, ["batch", dim])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2])
    made = helper.make_graph(nodes, "g", inputs, [output], initializer=[axes])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


WEIGHTS = {
    name: np.random.default_rng(m).normal(size=(TASK.modality(name).channels, D)).astype(np.float32)
    for m, name in enumerate(TASK.modality_names)
}


class Cloud:
    """A fetcher whose coordinator has everything that was put there; counts what was pulled."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self.here: dict[str, bytes] = {}
        self.pulled: list[str] = []

    def put(self, data: bytes) -> BlobRef:
        ref = self.blobs.put(data)
        self.blobs.remove(ref.digest)
        self.here[ref.digest] = data
        return ref

    async def fetch(self, ref: BlobRef, _timeout_s: float):
        if not self.blobs.has(ref.digest):
            self.pulled.append(ref.digest)
            self.blobs.put(self.here[ref.digest])
        return self.blobs.path(ref.digest)

    def version(self, weights=WEIGHTS) -> BlobRef:
        refs = {}
        for name, w in weights.items():
            tensor = {f"encoder/{name}/w": encode(w, Codec.FLOAT32)}
            refs[f"encoder/{name}"] = self.put(encode_frame(BlobHeader(name=f"encoder/{name}"), tensor))
        refs["head"] = BlobRef(digest="0" * 64, size=10)  # not there: whoever pulls it fails
        manifest = Manifest(task=TASK.name, method="qqr", version=0, blobs=refs)
        return self.put(manifest.model_dump_json().encode())


@asynccontextmanager
async def learning(folder, given=None, task=TASK, modalities=TASK.modality_names, *, learn="", zygote=None):
    """A learner in role ``prototype``, its cloud, and what it spools."""
    text = 'fleet = "f"\ndevice = "d"\n[[source]]\nkind = "replay"\nfile = "toy.npz"\n' + learn
    settings = read(config(folder, text, roles=["observe", "prototype"]))
    clock = SystemClock()
    store = WindowStore(settings.state_dir / "store", task, 10_000_000)
    store.add(windows([0, 2] * 20, task=task) if given is None else given)
    work = WindowWorkspace(task, modalities, None, None, store)
    storage = open_storage(settings, clock)
    cloud = Cloud(storage.blobs)
    learner = learner_of(settings, work, storage, cloud, clock, zygote=zygote or InThreads())
    try:
        async with beside(learner.run(), forever=True):
            yield learner, cloud
    finally:
        if zygote is not None:
            await zygote.aclose()
        storage.close()
        store.close()


def offer(cloud: Cloud, round_: int = 1, *, base=None, graphs=None) -> Offer:
    ref = base or cloud.version()
    named = {name: cloud.put(graph(name)) for name in TASK.modality_names} if graphs is None else graphs
    return Offer(task="toy", round=round_, base=ref.digest, base_size=ref.size, closes_in_s=60, graphs=named)


def sent(learner) -> tuple[UpdateHeader, dict]:
    (entry,) = learner.storage.spool.pending()
    return decode_frame(learner.storage.spool.payload(entry.digest), UpdateHeader)


async def test_prototypes_of_the_base_are_sent_and_nothing_else_is_pulled(tmp_path):
    given = windows([0, 2] * 20, task=TASK)
    async with learning(tmp_path, given, zygote=ZygoteClient()) as (learner, cloud):
        asked = offer(cloud)
        learner.offer(asked)
        await until(lambda: learner.trained == 1)
        header, tensors = sent(learner)
        # The manifest, two encoders and two graphs; the head and the prototypes are none of its business.
        assert len(cloud.pulled) == 5
        assert learner.why == "the update for round 1 waits for its receipt"
    assert (header.base, header.round, header.weight) == (asked.base, 1, 1)
    assert set(tensors) == {"prototypes/acc/values", "prototypes/gyr/values"}
    assert header.extra["prototypes"]["acc"]["classes"] == [0, 2]
    assert header.counts["acc"] == (20, 0, 20)
    # (13): the mean of the normalised features of the class, from this base's own weights.
    z_BD = normalise(given.x["acc"].mean(axis=2) @ WEIGHTS["acc"], 8.0)
    want_RD = np.stack([z_BD[given.y_B == k].mean(axis=0) for k in (0, 2)])
    np.testing.assert_allclose(tensors["prototypes/acc/values"], normalise(want_RD, 8.0), atol=1e-4)


async def test_a_modality_that_only_some_windows_have_counts_those_alone(tmp_path):
    async with learning(tmp_path) as (learner, cloud):
        learner.offer(offer(cloud))
        await until(lambda: learner.trained == 1)
        header, _ = sent(learner)
    gyr = header.extra["prototypes"]["gyr"]
    assert tuple(gyr["counts"]) == tuple(n for n in header.counts["gyr"] if n)
    assert sum(gyr["counts"]) == 26  # every third of 40 lacks it


async def test_a_device_with_one_modality_pulls_one_encoder(tmp_path):
    given = windows([0, 2] * 20, task=TASK)
    given.present_BM[:, 1] = False
    async with learning(tmp_path, given, modalities=("acc",)) as (learner, cloud):
        learner.offer(offer(cloud, graphs={"acc": cloud.put(graph("acc"))}))
        await until(lambda: learner.trained == 1)
        assert len(cloud.pulled) == 3
        assert set(sent(learner)[1]) == {"prototypes/acc/values"}


@pytest.mark.parametrize("which", ["graph", "encoder"])
async def test_what_rotted_in_the_cache_is_refused_in_words_and_pulled_again(tmp_path, monkeypatch, which):
    monkeypatch.setattr("edge_agent.training.learner._FIRST_PAUSE_S", 0.0)
    async with learning(tmp_path) as (learner, cloud):
        asked = offer(cloud)
        manifest = Manifest.model_validate_json(cloud.here[asked.base])
        ref = asked.graphs["acc"] if which == "graph" else manifest.blobs["encoder/acc"]
        path = cloud.blobs.path(ref.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"rotten")
        learner.offer(asked)
        await until(lambda: learner.failures == 1)
        name = "graph of acc" if which == "graph" else "encoder/acc"
        assert f"the blob '{name}' is damaged; it is fetched again" in learner.why
        learner.offer(asked)
        await until(lambda: learner.trained == 1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b"no graph at all",
            "no features of acc can be computed: malformed: the encoder model does not load",
        ),
        (graph("gyr"), "features of acc: graph and encoder differ in tensor 'encoder/acc/w'"),
        (
            graph("acc", dim=9),
            "features of acc: the encoder model gives features of 9 values, the task says 8",
        ),
        (b"x" * (MAX_MODEL_BYTES + 1), "the encoder model of acc has 1048577 bytes"),
    ],
)
async def test_a_graph_that_cannot_be_used_costs_a_round_and_is_said(tmp_path, data, words):
    async with learning(tmp_path) as (learner, cloud):
        bad = cloud.put(data)
        learner.offer(offer(cloud, graphs={"acc": bad}))
        await until(lambda: learner.failures == 1)
        assert words in learner.why
        if len(data) > MAX_MODEL_BYTES:
            assert bad.digest not in cloud.pulled, "refused before a byte of it came"
        assert learner.storage.spool.pending() == []


async def test_an_encoder_that_is_not_finite_is_refused(tmp_path):
    given = windows([0, 2] * 20, task=TASK)
    given.x["acc"][:] *= 1000
    async with learning(tmp_path, given) as (learner, cloud):
        broken = WEIGHTS | {"acc": np.full_like(WEIGHTS["acc"], 3e38)}
        learner.offer(offer(cloud, base=cloud.version(broken)))
        await until(lambda: learner.failures == 1)
        assert "features of acc" in learner.why
        assert "not finite" in learner.why


class Slow(EncoderModel):
    """Stops at the first slice until it is told to go on."""

    entered, go_on = threading.Event(), threading.Event()
    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    def __init__(self, *args):
        super().__init__(*args)
        self.alive.add(self)

    def run(self, x_BCT, encoder):
        self.entered.set()
        assert self.go_on.wait(20)
        return super().run(x_BCT, encoder)


@pytest.fixture
def slow(monkeypatch):
    Slow.entered.clear()
    Slow.go_on.clear()
    Slow.alive.clear()
    monkeypatch.setattr(model_server, "EncoderModel", Slow)
    monkeypatch.setattr(prototype_maker, "_SLICE", 1)
    yield Slow
    Slow.go_on.set()


async def test_the_loop_goes_on_and_a_newer_offer_stops_the_work(tmp_path, slow):
    async with learning(tmp_path) as (learner, cloud):
        learner.offer(offer(cloud))
        await until(slow.entered.is_set)  # and so the loop runs while the thread computes
        assert "making prototypes for round 1" in learner.why
        learner.offer(offer(cloud, 2))
        slow.go_on.set()
        await until(lambda: learner.trained == 1)
        assert sent(learner)[0].round == 2
        assert learner.failures == 0
        await until(lambda: gc.collect() >= 0 and not slow.alive)


async def test_the_agent_stops_while_prototypes_are_made(tmp_path, slow):
    async with learning(tmp_path) as (learner, cloud):
        learner.offer(offer(cloud))
        await until(slow.entered.is_set)
        slow.go_on.set()
        assert learner.trained == 0
    assert learner._task is None
    await until(lambda: gc.collect() >= 0 and not slow.alive)


async def test_work_that_takes_too_long_is_given_up_and_said(tmp_path, slow):
    async with learning(tmp_path, learn="[learn]\ntimeout_s = 0.05\n") as (learner, cloud):
        learner.offer(offer(cloud))
        await until(slow.entered.is_set)
        await asyncio.sleep(0.1)
        slow.go_on.set()
        await until(lambda: learner.failures == 1)
        assert "not made in 0.05 s (learn.timeout_s)" in learner.why


async def test_an_offer_without_graphs_waits_and_says_why(tmp_path):
    async with learning(tmp_path) as (learner, cloud):
        learner.offer(offer(cloud, graphs={}))
        await until(lambda: "names no encoder models" in learner.why)
        assert cloud.pulled == []
        learner.offer(offer(cloud, graphs={"other": cloud.put(graph("acc"))}))
        await until(lambda: "there are no encoder models of acc, gyr" in learner.why)


async def test_a_method_without_the_role_is_named(tmp_path, monkeypatch):
    spec = registry.method("qqr")
    monkeypatch.setattr(type(spec), "__setattr__", object.__setattr__)
    monkeypatch.setattr(spec, "prototype_role", False)
    async with learning(tmp_path) as (learner, cloud):
        learner.offer(offer(cloud))
        await until(lambda: "method 'qqr' has no use for devices of role 'prototype'" in learner.why)
        assert cloud.pulled == []


async def test_windows_without_labels_make_no_prototypes_and_are_not_counted(tmp_path):
    async with learning(tmp_path, windows([-1] * 40, task=TASK)) as (learner, cloud):
        learner.offer(offer(cloud))
        await until(lambda: "0 windows to learn from, the task wants 8" in learner.why)


async def test_onnxruntime_that_dies_on_this_processor_takes_no_agent_with_it(tmp_path, monkeypatch):
    (tmp_path / "broken" / "onnxruntime").mkdir(parents=True)
    dies = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    (tmp_path / "broken" / "onnxruntime" / "__init__.py").write_text(dies)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    monkeypatch.setattr("edge_agent.training.learner._FIRST_PAUSE_S", 0.0)
    async with learning(tmp_path, zygote=ZygoteClient()) as (learner, cloud):
        asked = offer(cloud)
        learner.offer(asked)
        await until(lambda: learner.failures == 1)
        assert "no features of acc can be computed: onnxruntime dies with SIGILL" in learner.why
        monkeypatch.delenv("PYTHONPATH")
        learner.offer(asked)
        await until(lambda: learner.trained == 1)


@pytest.mark.parametrize(("opened", "words"), [({}, "answers nonsense"), ({"dim": D}, "it has ended")])
async def test_a_process_that_lies_or_dies_of_a_graph_costs_the_round(tmp_path, opened, words):
    async with learning(tmp_path, zygote=Liar(lambda sock: sock.shutdown(2), opened)) as (learner, cloud):
        learner.offer(offer(cloud))
        await until(lambda: learner.failures == 1)
        assert re.search(f"no features of acc can be computed: .*{words}", learner.why)


async def test_what_the_method_keeps_is_handed_back(tmp_path, monkeypatch):
    seen = []

    class Keeping:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def summarise(self, context, windows_, features, private):
            seen.append(dict(private))
            result = self._inner.summarise(context, windows_, features, private)
            result.private = {"mine": np.full(1, context.round, np.float32)}
            return result

    inner = registry.method("qqr").prototyper()
    monkeypatch.setattr(type(registry.method("qqr")), "prototyper", lambda _self: Keeping(inner))
    async with learning(tmp_path) as (learner, cloud):
        for round_ in (1, 2):
            learner.offer(offer(cloud, round_))
            await until(lambda n=round_: learner.trained == n)
            await until(lambda n=round_: learner.storage.private.read("toy").get("mine", [0])[0] == n)
    assert [one.get("mine") for one in seen] == [None, 1.0]


@pytest.fixture
def lacking(monkeypatch):
    """Makes modules unfindable."""
    find, gone = importlib.util.find_spec, set()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in gone else find(name, *a)
    )
    for cached in (roles._has_torch, roles.has_onnxruntime):
        cached.cache_clear()
    yield gone.update
    for cached in (roles._has_torch, roles.has_onnxruntime):
        cached.cache_clear()


@pytest.mark.parametrize(
    "case",
    [
        (["observe", "prototype"], ["torch"], ["observe", "prototype"], "prototype", []),
        (["observe", "prototype"], ["onnxruntime"], ["observe"], None, ["lichen[infer]"]),
        (["train", "prototype"], [], ["train", "prototype"], "train", []),
        (["train", "prototype"], ["torch"], ["prototype"], "prototype", ["lichen[train]"]),
        (["train", "prototype"], ["torch", "onnxruntime"], [], None, ["lichen[train]", "lichen[infer]"]),
        (["observe"], [], ["observe"], None, []),
    ],
)
def test_a_role_is_announced_where_what_it_needs_is_installed(tmp_path, lacking, case):
    asked, gone, announced, by, words = case
    lacking(gone)
    path = config(tmp_path, roles=asked)
    settings = read(path)
    assert list(roles.roles_of(settings)) == announced
    assert roles.learning_role(settings) == by
    assert len(roles.unavailable_roles(settings)) == len(words)
    assert all(word in said for word, said in zip(words, roles.unavailable_roles(settings), strict=True))
    result = CliRunner().invoke(main.app, ["check", "--config", str(path), "--format", "json"])
    told = json.loads(result.stdout)
    assert told["roles"] == announced
    assert len(told["warnings"]) == len(words)
    if by is None:
        assert roles.no_role_reason(settings)


def test_status_says_what_a_prototype_device_waits_for(tmp_path):
    agent = make(tmp_path, roles=["observe", "prototype"])
    (wait,) = agent.learner.waits()
    assert "when it has made the encoder models, and a device trains" in wait.then
    agent.close()
    (tmp_path / "other").mkdir()
    agent = make(tmp_path / "other")
    (wait,) = agent.learner.waits()
    assert "encoder models" not in wait.then
    agent.close()


async def test_a_task_with_none_of_the_modalities_is_refused_and_status_says_so(tmp_path):
    agent = make(tmp_path, roles=["observe", "prototype"])
    strange = toy_task(modalities=(Modality(name="eeg", channels=4, rate_hz=50),), name="sleep")
    with pytest.raises(Refused, match="none of its modalities"):
        await agent.work.on_task(Route("f", Kind.TASK), encode_message(TaskAnnouncement.of(strange)))
    (wait,) = [wait for wait in agent.report.waits() if wait.what == "task"]
    assert "this device cannot do the announced task" in wait.why
    assert "eeg" in wait.why
    await agent.work.on_task(Route("f", Kind.TASK), encode_message(TaskAnnouncement.of(TASK)))
    assert "task" not in {wait.what for wait in agent.report.waits()}
    agent.close()
