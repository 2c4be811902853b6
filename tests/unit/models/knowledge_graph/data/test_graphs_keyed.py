"""Graphs under a fleet's secret: what a worker gets, and what its file must hold."""

from dataclasses import replace

import numpy as np
import pytest

from models.knowledge_graph.data import keyed
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.data.keys import ENTITIES, RELATIONS, key
from models.knowledge_graph.data.merging import empty, merge
from models.tensors import read_arrays
from protocol.errors import Misconfigured
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Modality, Task
from tests.support.methods.graph_cases import SECRET, house, random_graph

TASK = Task(
    name="house",
    graph=KnowledgeGraphTask(features=(Features(name="text", dim=2), Features(name="picture", dim=3))),
)
WINDOWS = Task(name="t", labels=("a", "b"), modalities=(Modality(name="acc", channels=2, rate_hz=8),))
TEXT = {"Zoë": [1.0, 2.0], "pump": [0.0, 1.0]}


@pytest.fixture
def graph() -> KeyedGraph:
    return KeyedGraph.of(house(text=TEXT), SECRET, TASK)


def test_names_become_keys_of_their_own_purpose(graph):
    plain = house(text=TEXT)
    assert [bytes(k) for k in graph.entity_keys_E16] == [key(SECRET, n, ENTITIES) for n in plain.entities]
    assert [bytes(k) for k in graph.relation_keys_R16] == [key(SECRET, n, RELATIONS) for n in plain.relations]
    assert key(SECRET, "feeds", RELATIONS).hex() == "f1aa0b817f88a0d4e3e2bfe01ff3745e"
    assert key(SECRET, "pump", ENTITIES) != key(SECRET, "pump", RELATIONS)
    assert len(graph) == len(plain)


def test_another_secret_gives_other_keys_of_everything(graph):
    other = KeyedGraph.of(house(text=TEXT), b"x" * 32, TASK)
    for one, two in (
        (graph.entity_keys_E16, other.entity_keys_E16),
        (graph.relation_keys_R16, other.relation_keys_R16),
    ):
        assert not {bytes(k) for k in one} & {bytes(k) for k in two}


def test_modalities_are_the_task_s_in_its_order_absent_where_the_graph_has_none(graph):
    assert list(graph.features) == ["text", "picture"]
    names = house(text=TEXT).entities
    assert graph.present_EM.tolist() == [[name in TEXT, False] for name in names]
    assert graph.features["text"][names.index("Zoë")].tolist() == [1.0, 2.0]
    assert not graph.features["picture"].any()
    turned = TASK.model_copy(update={"graph": KnowledgeGraphTask(features=TASK.graph.features[::-1])})
    again = KeyedGraph.of(house(text=TEXT), SECRET, turned)
    assert again.present_EM[:, ::-1].tolist() == graph.present_EM.tolist()


def test_a_modality_that_the_task_has_not_is_left_behind():
    more = house(text=TEXT, smell={"pump": [1.0]})
    assert list(KeyedGraph.of(more, SECRET, TASK).features) == ["text", "picture"]


def test_features_of_another_width_are_named():
    with pytest.raises(Misconfigured, match=r"'text' have 1 numbers.*graph\.features\.text\.dim = 2"):
        KeyedGraph.of(house(text={"pump": [1.0]}), SECRET, TASK)


def test_a_short_secret_and_a_task_on_windows_are_refused():
    with pytest.raises(Misconfigured, match="secret for entity keys has 4 bytes"):
        KeyedGraph.of(house(), b"1234", TASK)
    with pytest.raises(Misconfigured, match=r"task 't' is of windows: it has no table \[graph\]"):
        KeyedGraph.of(house(), SECRET, WINDOWS)


@pytest.mark.parametrize(
    ("names", "what"), [(("e\u0301", "\u00e9"), "entities"), (("sees", "sees\u0301"), None)]
)
def test_two_spellings_of_one_name_are_told_apart_or_named(names, what):
    """NFC makes the two spellings of \u00e9 one; files are read so, a graph made in code may not be."""
    plain = merge(empty(), [("a", "r", "b")])[0]
    other = replace(plain, entities=names)
    if what is None:
        assert len(KeyedGraph.of(other, SECRET, TASK).entity_keys_E16) == 2
        return
    with pytest.raises(Misconfigured, match=rf"{what} .* have the same key.*rename one"):
        KeyedGraph.of(other, SECRET, TASK)


def test_a_graph_comes_back_from_its_file_without_a_name_in_it(graph, tmp_path):
    path = tmp_path / "graph.npz"
    keyed.save(path, graph)
    again = keyed.load(path, TASK)
    for name in ("entity_keys_E16", "relation_keys_R16", "triples_N3", "present_EM"):
        np.testing.assert_array_equal(getattr(again, name), getattr(graph, name))
    data = path.read_bytes()
    assert not [name for name in ("pump", "boiler", "feeds") if name.encode() in data]


CHANGES = {
    "missing": ({"present": None}, r"keys \['present'\] are missing or foreign"),
    "foreign": ({"x/smell": np.zeros((5, 1), np.float32)}, r"keys \['x/smell'\] are missing or foreign"),
    "whole numbers": ({"triples": np.zeros((6, 3), np.float32)}, r"'triples' is float32 \(6, 3\), not int64"),
    "pairs": ({"triples": np.zeros((6, 2), np.int64)}, r"'triples' is int64 \(6, 2\), not int64 \(6, 3\)"),
    "a number": ({"triples": np.int64(3)}, r"'triples' is int64 \(\)"),
    "a number of keys": ({"entity_keys": np.uint8(3)}, r"'entity_keys' is uint8 \(\)"),
    "short keys": ({"relation_keys": np.zeros((4, 8), np.uint8)}, r"'relation_keys' is uint8 \(4, 8\)"),
    "half a mask": ({"present": np.ones((5, 1), bool)}, r"'present' is bool \(5, 1\), not bool \(5, 2\)"),
    "wide": ({"x/text": np.zeros((5, 9), np.float32)}, r"'x/text' is float32 \(5, 9\)"),
    "beyond": ({"triples": np.array([[0, 0, 5]])}, r"'triples' has indices beyond 5 entities, 4 relations"),
    "before": ({"triples": np.array([[0, -1, 0]])}, "'triples' has indices beyond"),
    "not finite": ({"x/text": np.full((5, 2), np.nan, np.float32)}, "NaN or infinity"),
}


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES)
def test_a_file_that_is_no_such_graph_is_named_with_its_key(graph, tmp_path, change, words):
    path = tmp_path / "graph.npz"
    keyed.save(path, graph)
    arrays = read_arrays(path, "a graph") | change
    np.savez(path, **{name: x for name, x in arrays.items() if x is not None})
    with pytest.raises(Misconfigured, match=rf"graph\.npz: .*{words}"):
        keyed.load(path, TASK)


def test_a_graph_of_another_task_and_no_file_are_refused(graph, tmp_path):
    path = tmp_path / "graph.npz"
    keyed.save(path, graph)
    with pytest.raises(Misconfigured, match="no knowledge graph for task 't'"):
        keyed.load(path, WINDOWS)
    with pytest.raises(Misconfigured, match=r"none\.npz: cannot be read as a knowledge graph"):
        keyed.load(tmp_path / "none.npz", TASK)


def test_a_large_graph_keeps_its_facts(tmp_path):
    plain = random_graph()
    task = TASK.model_copy(
        update={
            "graph": KnowledgeGraphTask(
                features=(Features(name="numeric", dim=3), Features(name="text", dim=5))
            )
        }
    )
    path = tmp_path / "graph.npz"
    keyed.save(path, KeyedGraph.of(plain, SECRET, task))
    again = keyed.load(path, task)
    np.testing.assert_array_equal(again.triples_N3, plain.triples_N3)
    np.testing.assert_array_equal(again.present_EM, plain.present_EM[:, ::-1])
