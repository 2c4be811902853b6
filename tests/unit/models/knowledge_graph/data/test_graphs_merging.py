"""A graph grows: what is known keeps its place, what is dropped is counted; and a graph from files."""

from pathlib import Path

import numpy as np
import pytest

from models.knowledge_graph.data import files, loading
from models.knowledge_graph.data.files import FeatureTable, Masks
from models.knowledge_graph.data.merging import MergeCounts, MergeRoom, codes, empty, merge
from protocol.errors import Misconfigured, Reason, Refused
from tests.support.methods.graph_cases import HOUSE, house, named, random_graph


def test_new_names_come_behind_the_known_ones_and_rows_are_kept():
    before = house(text={"boiler": [1.0, 2.0], "pump": [3.0, 4.0]})
    after, counts = merge(before, [("hygrometer", "stands_in", "attic"), ("pump", "cools", "cellar")])
    assert after.entities == (*before.entities, "hygrometer", "attic")
    assert after.relations == (*before.relations, "cools")
    assert after.triples_N3.tolist() == [*before.triples_N3.tolist(), [5, 0, 6], [4, 4, 1]]
    assert after.features["text"].tolist() == [*before.features["text"].tolist(), [0, 0], [0, 0]]
    assert after.present_EM[:, 0].tolist() == [*before.present_EM[:, 0].tolist(), False, False]
    assert counts == MergeCounts(entities=2, relations=1, triples=2)
    assert len(before) == len(HOUSE)


def test_what_is_known_is_a_duplicate_and_changes_nothing():
    graph = house()
    again, counts = merge(graph, HOUSE)
    assert again is graph
    assert counts == MergeCounts(duplicates=len(HOUSE))
    assert merge(graph, [("Zoe\u0308", "looks_after", " boiler")])[1] == MergeCounts(duplicates=1)
    new = ("pump", "cools", "cellar")
    assert merge(graph, [new, new])[1] == MergeCounts(relations=1, triples=1, duplicates=1)


def test_a_name_that_cannot_be_one_costs_its_fact_alone():
    graph, counts = merge(empty(), [("a", "r", "b\x00"), ("", "r", "b"), ("a", "r", "c")])
    assert graph.entities == ("a", "c")
    assert counts == MergeCounts(entities=2, relations=1, triples=1, unnamed=2)


@pytest.mark.parametrize(
    ("room", "entities", "kept"),
    [
        (MergeRoom(triples=2), ("a", "b", "c"), [[0, 0, 1], [1, 0, 2]]),
        (MergeRoom(entities=3), ("a", "b", "c"), [[0, 0, 1], [1, 0, 2], [2, 1, 0]]),
        (MergeRoom(entities=2), ("a", "b"), [[0, 0, 1]]),
        (MergeRoom(relations=1), ("a", "b", "c", "d", "e"), [[0, 0, 1], [1, 0, 2], [3, 0, 4]]),
        (MergeRoom(entities=1), (), []),
    ],
)
def test_what_there_is_no_room_for_is_dropped_with_its_names_and_counted(room, entities, kept):
    facts = [("a", "r", "b"), ("b", "r", "c"), ("c", "s", "a"), ("d", "r", "e")]
    graph, counts = merge(empty(), facts, room=room)
    assert graph.entities == entities
    assert graph.triples_N3.tolist() == kept
    assert (counts.triples, counts.no_room) == (len(kept), 4 - len(kept))
    assert merge(graph, [("a", "r", "b")] * bool(kept), room=room)[1].no_room == 0
    assert merge(graph, facts, room=room)[1].no_room == 4 - len(kept), (
        "the room is the graph's, not the merge's"
    )


def test_a_fact_about_one_thing_needs_room_for_one():
    assert merge(empty(), [("a", "knows", "a")], room=MergeRoom(entities=1))[0].triples_N3.tolist() == [
        [0, 0, 0]
    ]


def test_a_room_is_no_larger_than_facts_can_be_told_apart_in():
    far_N3 = np.array(
        [[2**24 - 1, 2**15 - 1, 2**24 - 1], [2**24 - 1, 2**15 - 1, 0], [0, 2**15 - 1, 0], [0, 0, 1]]
    )
    assert len(set(codes(far_N3).tolist())) == 4
    assert (codes(far_N3) >= 0).all()
    for room in ({"entities": 2**24 + 1}, {"relations": 2**15 + 1}):
        with pytest.raises(ValueError, match="at most"):
            MergeRoom(**room)


def test_newer_features_take_the_place_of_older_ones():
    graph = house(text={"boiler": [1.0, 2.0], "pump": [3.0, 4.0]})
    new = named({"pump": [5.0, 6.0], "cellar": [7.0, 8.0], "attic": [9.0, 9.0]})
    after, counts = merge(graph, features={"text": new})
    assert after.features["text"].tolist() == [[1, 2], [7, 8], [0, 0], [0, 0], [5, 6]]
    assert after.present_EM[:, 0].tolist() == [True, True, False, False, True]
    assert counts == MergeCounts(rows=2, replaced=1, strangers=1)
    assert graph.features["text"][4].tolist() == [3, 4]


def test_an_entity_that_comes_twice_has_what_came_last():
    new = FeatureTable(("Zo\u00eb", "Zoe\u0308", "\x00"), np.array([[1], [2], [3]], np.float32))
    after, counts = merge(house(), features={"text": new})
    assert after.features["text"][3].tolist() == [2]
    assert counts == MergeCounts(rows=2, replaced=1, strangers=1)


def test_a_new_modality_is_a_new_last_column():
    graph = house(text={"boiler": [1.0, 2.0]})
    after, _ = merge(graph, [("lamp", "stands_in", "attic")], {"numeric": named({"lamp": [60.0]})})
    assert after.modalities == ("text", "numeric")
    assert after.present_EM.tolist()[0] == [True, False]
    assert after.present_EM[after.entities.index("lamp")].tolist() == [False, True]
    assert np.array_equal(after.features["text"][:5], graph.features["text"])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.ones((1, 3), np.float32), Reason.WRONG_TENSORS),
        (np.ones((2, 2), np.float32), Reason.WRONG_TENSORS),
        (np.ones(1, np.float32), Reason.WRONG_TENSORS),
        (np.ones((1, 0), np.float32), Reason.WRONG_TENSORS),
        (np.full((1, 2), np.nan, np.float32), Reason.NON_FINITE),
    ],
)
def test_features_of_another_form_are_refused_by_modality(values, reason):
    with pytest.raises(Refused, match="features of 'text'") as refused:
        merge(house(text={"boiler": [1.0, 2.0]}), features={"text": FeatureTable(("pump",), values)})
    assert refused.value.reason is reason


def test_a_graph_from_files_counts_what_did_not_fit(tmp_path: Path):
    files.write_triples(tmp_path / "a.tsv", [*HOUSE[:3], HOUSE[0]])
    files.write_triples(tmp_path / "b.tsv", HOUSE[2:])
    files.write_features(tmp_path / "text.npz", named({"boiler": [1.0], "attic": [2.0], "pump": [3.0]}))
    masks = Masks(("garage", "pump", "boiler"), ("text",), np.array([[True], [False], [True]]))
    files.write_masks(tmp_path / "masks.npz", masks)
    graph, counts = loading.load(
        [tmp_path / "a.tsv", tmp_path / "b.tsv"], {"text": tmp_path / "text.npz"}, tmp_path / "masks.npz"
    )
    assert graph.triples_N3.tolist() == house().triples_N3.tolist()
    assert graph.features["text"][:, 0].tolist() == [1, 0, 0, 0, 0]
    assert graph.present_EM[:, 0].tolist() == [True, False, False, False, False]
    assert counts == MergeCounts(entities=5, relations=4, triples=6, rows=2, duplicates=2, strangers=2)


def test_masks_that_are_kept_give_the_same_graph_back(tmp_path: Path):
    graph = random_graph()
    kept = graph.masked(np.random.default_rng(1).random(graph.present_EM.shape) < 0.5)
    files.write_masks(tmp_path / "masks.npz", loading.masks_of(kept))
    again, strangers = loading.masked(graph, files.read_masks(tmp_path / "masks.npz"))
    assert strangers == 0
    assert np.array_equal(again.present_EM, kept.present_EM)
    assert all(np.array_equal(again.features[name], kept.features[name]) for name in kept.features)


def test_files_that_do_not_fit_each_other_are_named(tmp_path: Path):
    facts, text, masks = (tmp_path / name for name in ("a.tsv", "text.npz", "masks.npz"))
    files.write_triples(facts, HOUSE)
    files.write_features(text, named({"boiler": [1.0]}))
    files.write_masks(masks, Masks(("boiler",), ("image",), np.ones((1, 1), np.bool_)))
    with pytest.raises(
        Misconfigured, match=r"masks\.npz: masks name modality 'image'; there are features of text"
    ):
        loading.load([facts], {"text": text}, masks)
