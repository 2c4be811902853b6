"""A graph holds together, or is not made."""

from dataclasses import replace

import numpy as np
import pytest

from models.knowledge_graph.data import name_normalization
from models.knowledge_graph.data.graph import KnowledgeGraph
from tests.support.methods.graph_cases import HOUSE, house, random_graph

GRAPH = random_graph(entities=9, relations=3, triples=20)
X = GRAPH.features["text"]


def test_a_graph_counts_its_triples_and_names_its_modalities():
    graph = house(text={"boiler": [1.0, 2.0]})
    assert len(graph) == len(HOUSE)
    assert graph.modalities == ("text",)
    assert graph.entities == ("boiler", "cellar", "thermometer 1", "Zoë", "pump")
    assert graph.relations == ("stands_in", "measures", "looks_after", "feeds")
    assert graph.triples_N3[:2].tolist() == [[0, 0, 1], [2, 1, 0]]
    assert graph.present_EM[:, 0].tolist() == [True, False, False, False, False]
    assert len(graph.with_triples(graph.triples_N3[:2])) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"entities": ("e0",) * 9}, "entities: 8 names occur more than once"),
        ({"relations": ("r", "r", "s")}, "relations: 1 names"),
        ({"triples_N3": np.zeros((4, 2), np.int64)}, r"int64 \(4, 2\), not int64 \(N, 3\)"),
        ({"triples_N3": np.zeros((4, 3), np.int32)}, "int32"),
        ({"triples_N3": np.array([[0, 3, 1]])}, "among 9 entities and 3 relations"),
        ({"triples_N3": np.array([[9, 0, 1]])}, "among 9 entities"),
        ({"triples_N3": np.array([[0, 0, -1]])}, "among 9 entities"),
        ({"present_EM": GRAPH.present_EM[:, :1]}, r"not bool \(9, 2\)"),
        ({"present_EM": GRAPH.present_EM.astype(np.int8)}, "int8"),
        ({"features": {**GRAPH.features, "text": X[:8]}}, r"'text' are float32 \(8, 5\)"),
        ({"features": {**GRAPH.features, "text": X.astype(np.float64)}}, "float64"),
        (
            {"features": {**GRAPH.features, "text": np.where(X != 0, np.nan, X).astype("f")}},
            "NaN or infinity",
        ),
        (
            {"features": {**GRAPH.features, "text": np.ones_like(X)}},
            "'text' are not zero where they are absent",
        ),
    ],
)
def test_parts_that_do_not_fit_make_no_graph(change, words):
    with pytest.raises(ValueError, match=words):
        replace(GRAPH, **change)


def test_a_mask_takes_features_away_and_never_gives_any():
    keep_EM = np.arange(18).reshape(9, 2) % 3 != 0
    masked = GRAPH.masked(keep_EM)
    assert np.array_equal(masked.present_EM, GRAPH.present_EM & keep_EM)
    for m, (name, x_EF) in enumerate(masked.features.items()):
        assert not x_EF[~masked.present_EM[:, m]].any()
        assert np.array_equal(x_EF[masked.present_EM[:, m]], GRAPH.features[name][masked.present_EM[:, m]])
    assert not GRAPH.masked(np.zeros((9, 2), np.bool_)).present_EM.any()


def test_a_bare_graph_has_no_features():
    graph = KnowledgeGraph.bare(("a", "b"), ("r",), np.array([[0, 0, 1]]))
    assert (len(graph), graph.modalities, graph.present_EM.shape) == (1, (), (2, 0))


def test_spellings_of_one_name_become_one():
    assert name_normalization.clean(" Zoe\u0308 ") == name_normalization.clean("Zo\u00eb") == "Zoë"
    assert name_normalization.clean("Pump") != name_normalization.clean("pump")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is empty"),
        (" \u00a0 ", "is empty"),
        ("a\tb", r"U\+0009"),
        ("a\x00b", r"U\+0000"),
        ("a\ud800", r"U\+D800"),
        ("a\u2028b", r"U\+2028"),
        ("\ufeffa", r"U\+FEFF"),
        ("é" * 600, "1200 bytes, at most 1024"),
        ("a" * 5000, "5000 characters"),
    ],
)
def test_what_is_no_name_is_refused_in_a_short_message(name, words):
    with pytest.raises(ValueError, match=words) as refused:
        name_normalization.clean(name)
    assert len(str(refused.value)) < 500
    assert str(refused.value).isascii()
