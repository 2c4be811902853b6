"""What devices learn from, by kind: how it is kept in a job's folder, and what a header says of it."""

from dataclasses import replace

import numpy as np
import pytest

from models.data import window_set
from models.knowledge_graph.data import keyed
from models.knowledge_graph.data.keyed import KeyedGraph
from models.materials import KINDS
from models.registry import methods
from protocol.errors import Misconfigured
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Modality, Task
from tests.support.methods.graph_cases import SECRET, house

WINDOWS = Task(
    name="t",
    labels=("a", "b"),
    modalities=(Modality(name="acc", channels=2, rate_hz=8), Modality(name="mic", channels=1, rate_hz=4)),
)
HOUSE = Task(
    name="house",
    graph=KnowledgeGraphTask(features=(Features(name="text", dim=2), Features(name="picture", dim=3))),
)


def graph(task: Task = HOUSE) -> KeyedGraph:
    """The house; Zoë and the pump have a text, nothing has a picture."""
    return KeyedGraph.of(house(text={"Zoë": [1.0, 2.0], "pump": [0.0, 1.0]}), SECRET, task)


def test_every_method_s_material_is_of_a_kind_there_is():
    assert {spec.material for spec in methods().values()} <= set(KINDS)
    assert len({kind.file for kind in KINDS.values()}) == len(KINDS)
    assert KINDS["windows"].noun == "windows"
    assert KINDS["graph"].noun == "triples"


def test_windows_are_told_as_a_header_wants_them():
    windows = window_set.empty(WINDOWS)
    told = KINDS["windows"].told(windows, WINDOWS, ("acc", "mic"))
    assert told.samples == 0
    assert told.counts == {"acc": (0, 0), "mic": (0, 0)}
    assert (told.missing, told.quality) == ({"acc": 1.0, "mic": 1.0}, {})
    present_BM = np.array([[1, 1], [1, 0], [0, 1], [1, 1]], np.bool_)
    x = {m.name: np.zeros((4, m.channels, WINDOWS.samples(m.name)), np.float32) for m in WINDOWS.modalities}
    quality_BM = np.array([[0.5, 1], [0.25, 0], [9, 0.5], [0.75, 1.5]], np.float32)
    windows = replace(windows, x=x, present_BM=present_BM, quality_BM=quality_BM, y_B=np.array([0, 1, 1, -1]))
    told = KINDS["windows"].told(windows, WINDOWS, ("acc", "mic"))
    assert told.samples == 4
    assert told.counts == {"acc": (1, 1), "mic": (1, 1)}
    assert told.missing == {"acc": 0.25, "mic": 0.25}
    assert told.quality == {"acc": 0.5, "mic": 1.0}
    assert set(KINDS["windows"].told(windows, WINDOWS, ("mic",)).counts) == {"mic"}


def test_a_graph_is_told_by_its_triples_and_those_of_which_an_entity_has_a_modality():
    told = KINDS["graph"].told(graph(), HOUSE, ("text", "picture"))
    assert told.samples == 6
    assert told.counts == {"text": (3,), "picture": (0,)}
    assert told.missing == {"text": 0.5, "picture": 1.0}
    assert told.quality == {"text": 1.0, "picture": 1.0}
    assert KINDS["graph"].told(graph(), HOUSE, ("picture",)).counts == {"picture": (0,)}


def test_a_graph_without_facts_lacks_everything():
    none = replace(graph(), triples_N3=np.zeros((0, 3), np.int64))
    told = KINDS["graph"].told(none, HOUSE, ("text",))
    assert (told.samples, told.counts, told.missing) == (0, {"text": (0,)}, {"text": 1.0})


def test_a_graph_comes_back_from_its_file_as_it_went(tmp_path):
    one, path = graph(), tmp_path / KINDS["graph"].file
    KINDS["graph"].save(path, one)
    again = KINDS["graph"].load(path, HOUSE)
    for name in ("entity_keys_E16", "relation_keys_R16", "triples_N3", "present_EM"):
        np.testing.assert_array_equal(getattr(again, name), getattr(one, name))
    assert list(again.features) == ["text", "picture"]
    np.testing.assert_array_equal(again.features["text"], one.features["text"])
    first = path.read_bytes()
    keyed.save(path, again)
    assert path.read_bytes() == first
    with pytest.raises(Misconfigured, match=r"graph\.npz: key 'quality' is not in it"):
        KINDS["windows"].load(path, WINDOWS)
