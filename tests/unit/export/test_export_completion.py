"""Models that complete graphs: as ONNX they answer as torch does, and what does not is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from export import completion
from export.cli import for_all
from export.parity.gate import session
from lichen.commands.export import app
from models.knowledge_graph.networks.completion import Completer
from models.knowledge_graph.networks.triple_scores import SCORES
from protocol.bundle import COMPLETION_INPUTS, COMPLETION_OUTPUTS, Completion, unpack
from protocol.errors import Misconfigured, Refused
from protocol.frames.frame import digest, encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec, encode
from protocol.tasks.task import Task
from runtime.storage.blob_store import BlobStore

K, D = 4, 8
TASK = """
name = "plant"
method = "mmfed3_hide"
[graph]
top_k = 4
[[graph.features]]
name = "text"
dim = 3
[config]
score = "transe"
fusion = "split"
dim = 8
"""


def made(score: str = "transe", views: int = 1, kind: type[Completer] = Completer) -> Completer:
    return kind(SCORES[score](D, 12.0), views, K).eval()


@pytest.fixture(scope="module")
def model() -> bytes:
    return completion.to_onnx(made())


@pytest.mark.parametrize(("score", "views"), [("rotate", 1), ("complex", 3)])
def test_a_sound_graph_passes_for_every_size_of_table(score: str, views: int) -> None:
    reference = made(score, views)
    graph = completion.to_onnx(reference)
    found = completion.check(graph, reference)
    assert found.entities == (1, K - 1, K, K + 1, K + completion.MANY)
    assert found.cases == 7 * 4
    assert found.max_difference < 1e-5
    assert set(found.as_dict()) - set(found.for_manifest()) == {"latency_ms", "latency_batch_ms"}
    assert "28 cases" in found.words()
    assert all(trace.encode() not in graph for trace in (os.getcwd(), ".py", "torch"))  # noqa: PTH109


@pytest.mark.long
def test_the_same_module_gives_the_same_bytes(model: bytes) -> None:
    assert completion.to_onnx(made()) == model


def test_inputs_and_outputs_are_as_documented(model: bytes) -> None:
    loaded = session(model)
    assert {i.name: (i.type, i.shape) for i in loaded.get_inputs()} == {
        "head": ("tensor(int64)", ["batch"]),
        "relation": ("tensor(int64)", ["batch"]),
        "entities": ("tensor(float)", ["entities", 1, D]),
        "relations": ("tensor(float)", ["relations", D]),
    }
    assert [(o.name, o.type) for o in loaded.get_outputs()] == [
        ("tails", "tensor(int64)"),
        ("scores", "tensor(float)"),
    ]


def ask(model: bytes, e_EVD: np.ndarray, r_X: np.ndarray, head: int, relation: int) -> list[np.ndarray]:
    feeds = (np.array([head]), np.array([relation]), e_EVD.astype(np.float32), r_X.astype(np.float32))
    return session(model).run(list(COMPLETION_OUTPUTS), dict(zip(COMPLETION_INPUTS, feeds, strict=True)))


def test_both_directions_of_a_fact_are_answered_and_a_lack_of_entities_shows(
    model: bytes,
) -> None:
    e_EVD = np.random.default_rng(0).normal(size=(3, 1, D))
    forth = e_EVD[2, 0] - e_EVD[0, 0]  # (0, r, 2) is a fact
    r_X = np.stack([forth, -forth])
    for head, relation, answer in ((0, 0, 2), (2, 1, 0)):
        tails, scores = ask(model, e_EVD, r_X, head, relation)
        assert tails[0, 0] == answer
        assert scores[0, 0] == pytest.approx(12, abs=1e-2)
        assert sorted(tails[0, :3]) == [0, 1, 2]
        assert tails[0, 3] == -1
        assert scores[0, 3] == np.finfo(np.float32).min
        assert (np.diff(scores) <= 0).all()


def test_of_entities_that_tie_the_first_ones_are_given(model: bytes) -> None:
    tails, scores = ask(model, np.zeros((9, 1, D)), np.zeros((2, D)), 5, 1)
    assert tails.tolist() == [[0, 1, 2, 3]]
    assert len(set(scores[0])) == 1


class Run:
    """Stands in for a session: a graph that does what torch does, and then something wrong."""

    def __init__(self, wrong) -> None:
        self.module, self.wrong = made(), wrong

    def run(self, _names, feeds):
        with torch.no_grad():
            tails, scores = self.module(*(torch.from_numpy(feeds[name]) for name in COMPLETION_INPUTS))
        return self.wrong(tails.numpy(), scores.numpy(), len(feeds["entities"]))


@pytest.mark.parametrize(
    ("wrong", "words", "reason"),
    [
        (lambda t, s, _: (t, s + 0.1), "differ at batch 1, 1 entities: scores by .*at most 1e-03", "bounds"),
        (lambda t, s, _: (t[:, ::-1].copy(), s), "tails are not 1 different ones of 1 entities", "bounds"),
        (lambda t, s, n: (np.where(t < 0, t, (t + 1) % n), s), "differ at batch 1, 3 entities", "bounds"),
        (lambda t, s, n: (np.where(t < 0, n, t), s), "tails are not 1 different ones", "bounds"),
        (lambda t, s, _: (np.where(t < 0, t, t[:, :1]), s), "tails are not 3 different ones", "bounds"),
        (lambda t, s, _: (t[:, 1:], s[:, 1:]), r"tails are int64 \(1, 3\)", "tensors"),
        (lambda t, s, _: (t.astype(np.int32), s), "tails are int32", "tensors"),
        (lambda t, s, _: (t, s * np.nan), "scores by nan", "bounds"),
    ],
)
def test_a_graph_that_answers_otherwise_is_refused(monkeypatch, wrong, words: str, reason: str) -> None:
    monkeypatch.setattr(completion, "session", lambda _: Run(wrong))
    with pytest.raises(Refused, match=words) as info:
        completion.check(b"", made())
    assert info.value.reason.value.endswith(reason)


def test_another_score_and_a_reference_that_is_no_number_are_refused(model: bytes) -> None:
    with pytest.raises(Refused, match="differ at"):
        completion.check(model, made("complex"))

    class Void(Completer):
        def scores(self, *arguments: torch.Tensor) -> torch.Tensor:
            return super().scores(*arguments) * torch.nan

    with pytest.raises(Refused, match="nan"):
        completion.check(model, made(kind=Void))
    with pytest.raises(Refused, match="does not run at batch 1"):
        completion.check(model, made(views=2))
    with pytest.raises(Misconfigured, match="completes no knowledge graphs"):
        completion.to_onnx(nn.Identity())


def blob(store: BlobStore, name: str):
    tensors = {f"{name}/weight": encode(np.ones((2, 2), np.float32), Codec.FLOAT32)}
    return store.put(encode_frame(BlobHeader(name=name), tensors))


def test_the_command_makes_a_bundle_and_reads_nothing_that_a_device_owns(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    refs = {name: blob(store, name) for name in ("projection/text", "rows/a", "rows/b")}
    store.path(refs["rows/a"].digest).write_bytes(b"not ours to read")
    version = Manifest(task="plant", method="mmfed3_hide", version=2, blobs=refs)
    (tmp_path / "manifest.json").write_text(version.model_dump_json())
    (tmp_path / "task.toml").write_text(TASK)
    options = {"blobs": "blobs", "manifest": "manifest.json", "task": "task.toml", "out": "out.zip"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(tmp_path / value))]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "it answers (head, relation) with the best 4 tails" in done.output
    data = (tmp_path / "out.zip").read_bytes()
    manifest, files = unpack(data)
    assert manifest.graph == Completion(top_k=4, views=2, entity_dim=8, relation_dim=8)
    assert (manifest.inputs, manifest.outputs) == (COMPLETION_INPUTS, COMPLETION_OUTPUTS)
    assert (manifest.labels, manifest.modalities, manifest.predicted) == ((), (), ())
    assert (manifest.version, manifest.base) == (2, digest((tmp_path / "manifest.json").read_bytes()))
    assert set(files) == {"model.onnx"}
    assert len(data) < 16_384, "no table lies in it"
    assert manifest.parity["cases"] == 28


def test_what_devices_own_is_left_out_by_the_method_s_word() -> None:
    refs = {
        name: {"digest": "0" * 64, "size": 1} for name in ("projection/text", "rows/a", "optimizer/first/x")
    }
    task = Task.model_validate({"name": "plant", "method": "mmfed3_hide", "graph": {}})
    version = Manifest.model_validate({"task": "plant", "method": task.method, "version": 1, "blobs": refs})
    assert for_all(task, version) == ("projection/text", "optimizer/first/x")
