"""Tasks and bundles of graphs: what they say, what they refuse, and that those of windows say nothing new."""

import pytest
from pydantic import ValidationError

from protocol import messages
from protocol.bundle import BundleManifest, Completion, pack, unpack
from protocol.errors import Refused
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.labelling import Labelled
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Modality, Target, Task

GRAPH = KnowledgeGraphTask(features=(Features(name="text", dim=16), Features(name="picture", dim=4)), top_k=5)
TASK = Task(name="plant", graph=GRAPH)
SENSOR = Modality(name="a", channels=1, rate_hz=5)
MANIFEST = BundleManifest(
    task="plant",
    method="any",
    version=2,
    inputs=("head", "relation", "entities", "relations"),
    outputs=("tails", "scores"),
    round=2,
    base="ab" * 32,
    graph=Completion(top_k=5, views=2, entity_dim=16, relation_dim=8),
)


def test_the_modalities_of_a_graph_are_its_features_and_it_has_no_objectives():
    assert TASK.modality_names == TASK.input_names == ("text", "picture")
    assert (TASK.objectives, TASK.target_names, TASK.classes) == ((), (), 1)
    with pytest.raises(KeyError, match="no modality 'text'"):
        TASK.modality("text")  # of streams it has none
    assert Task(name="bare", graph=KnowledgeGraphTask()).modality_names == ()


def test_the_classes_of_windows_are_their_labels():
    assert Task(name="t", labels=("a", "b", "c"), modalities=(SENSOR,)).classes == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("labels", ("a", "b")),
        ("modalities", (SENSOR,)),
        ("targets", (Target(name="side", labels=("left", "right")),)),
        ("labelled", Labelled(file="own.npz")),
    ],
)
def test_what_is_of_windows_is_named_where_a_task_on_graphs_has_it(key, value):
    with pytest.raises(ValidationError, match=rf"{key}: a task with \[graph\] learns facts"):
        Task.model_validate({"name": "t", "graph": GRAPH, key: value})


def test_a_task_on_nothing_is_told_both_ways_out():
    with pytest.raises(ValidationError, match="labels: two or more are needed, found 1"):
        Task(name="t", labels=("a",), modalities=(SENSOR,))
    with pytest.raises(ValidationError, match=r"modalities: one or more .*a table \[graph\]"):
        Task(name="t", labels=("a", "b"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": [{"name": "text", "dim": 1}, {"name": "text", "dim": 2}]}, "'text' is named twice"),
        ({"features": [{"name": "a.b", "dim": 1}]}, r"features\.0\.name"),
        ({"features": [{"name": "text", "dim": 0}]}, r"features\.0\.dim"),
        ({"features": [{"name": f"f{n}", "dim": 1} for n in range(16)]}, "at most 15"),
        ({"top_k": 0}, "top_k"),
        ({"max_entities": 1}, "max_entities"),
        ({"tripels": 3}, "tripels"),
    ],
)
def test_a_wrong_graph_table_is_refused_by_its_key(change, words):
    with pytest.raises(ValidationError, match=words):
        KnowledgeGraphTask.model_validate(change, extra="forbid")


def test_a_task_on_graphs_travels_and_one_on_windows_has_no_word_of_graphs():
    sent = messages.encode(TaskAnnouncement.of(TASK))
    assert messages.decode(sent, TaskAnnouncement).read() == TASK
    plain = messages.encode(TaskAnnouncement.of(Task(name="t", labels=("a", "b"), modalities=(SENSOR,))))
    assert b"graph" not in plain


def test_a_bundle_of_a_graph_s_model_comes_out_as_it_went_in():
    manifest, files = unpack(pack(MANIFEST, {"model.onnx": b"x"}))
    assert manifest.model_copy(update={"files": {}}) == MANIFEST
    assert files == {"model.onnx": b"x"}
    assert (manifest.predicted, manifest.samples) == ((), {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"graph": None}, "labels, modalities: a model of windows has two labels"),
        ({"labels": ("a", "b")}, "graph: a model of knowledge graphs has neither labels nor modalities"),
        ({"modalities": (SENSOR,)}, "graph: a model of knowledge graphs has neither labels nor modalities"),
        ({"graph": {"top_k": 5, "views": 0, "entity_dim": 16, "relation_dim": 8}}, r"graph\.views"),
        ({"graph": {"top_k": 5, "views": 1, "entity_dim": 1 << 20, "relation_dim": 8}}, r"graph\.entity_dim"),
    ],
)
def test_a_manifest_is_of_windows_or_of_graphs(change, words):
    with pytest.raises(ValidationError, match=words):
        BundleManifest.model_validate(MANIFEST.model_dump() | change)


def test_a_manifest_of_neither_is_refused_where_it_is_read():
    with pytest.raises(Refused, match=r"manifest\.json.*two labels and a modality"):
        unpack(pack(MANIFEST.model_copy(update={"graph": None}), {}))
