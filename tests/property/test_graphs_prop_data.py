"""Graphs merge alike however facts come in; keys find their rows; files are a value or a refusal."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.knowledge_graph.data import files, keys, name_normalization
from models.knowledge_graph.data.files import FeatureTable, Masks
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.merging import MergeRoom, codes, empty, merge
from models.knowledge_graph.data.partition import partition
from protocol.errors import Misconfigured
from tests.support.methods.graph_cases import HOUSE, SECRET, random_graph

MANY = settings(max_examples=150, deadline=None)
WORD = st.sampled_from(["a", "b", "c", "d", "Zo\u00eb", "Zoe\u0308", " a", "", "x\ty"])
FACTS = st.lists(st.tuples(WORD, st.sampled_from(["r", "s", "t", "\n"]), WORD), max_size=25)
ROOMS = st.builds(
    MergeRoom, entities=st.integers(0, 9), relations=st.integers(0, 4), triples=st.integers(0, 9)
)
NAME = st.text(max_size=12)


def told(graph: KnowledgeGraph) -> list[tuple[str, str, str]]:
    return [
        (graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.triples_N3.tolist()
    ]


@MANY
@given(facts=FACTS, cuts=st.lists(st.integers(0, 25), max_size=4), room=ROOMS)
def test_facts_merged_in_parts_make_the_graph_that_they_make_at_once(facts, cuts, room):
    whole, counts = merge(empty(), facts, room=room)
    graph, total = empty(), None
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(facts)], strict=True):
        before = graph
        graph, new = merge(graph, facts[start:end], room=room)
        total = new if total is None else total + new
        assert graph.entities[: len(before.entities)] == before.entities
        assert graph.relations[: len(before.relations)] == before.relations
        assert np.array_equal(graph.triples_N3[: len(before)], before.triples_N3)
    assert (graph.entities, graph.relations, total) == (whole.entities, whole.relations, counts)
    assert np.array_equal(graph.triples_N3, whole.triples_N3)


@MANY
@given(facts=FACTS, room=ROOMS)
def test_every_fact_is_kept_or_counted_and_the_room_is_kept(facts, room):
    graph, counts = merge(empty(), facts, room=room)
    assert counts.triples + counts.duplicates + counts.no_room + counts.unnamed == len(facts)
    assert counts.triples == len(graph) == len(set(codes(graph.triples_N3).tolist())) <= room.triples
    assert counts.entities == len(graph.entities) <= room.entities
    assert counts.relations == len(graph.relations) <= room.relations
    used = np.unique(graph.triples_N3[:, [0, 2]])
    assert len(used) == len(graph.entities), "an entity without a fact takes room"
    again, repeated = merge(graph, told(graph), room=room)
    assert again is graph
    assert repeated.duplicates == len(graph)


@MANY
@given(
    parts=st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(-9, 9), max_size=5), max_size=4),
    facts=st.lists(st.tuples(st.sampled_from("abcd"), st.just("r"), st.sampled_from("abcd")), max_size=6),
)
def test_features_are_those_that_came_last_of_the_entities_that_are_known(parts, facts):
    graph, rows = merge(empty(), facts)[0], 0
    for part in parts:
        new = FeatureTable(tuple(part), np.array([*part.values()], np.float32).reshape(-1, 1))
        graph, counts = merge(graph, features={"m": new})
        assert counts.rows + counts.strangers == len(part)
        rows += counts.rows
    last = {name: value for part in parts for name, value in part.items() if name in graph.entities}
    column = graph.features.get("m", np.zeros((len(graph.entities), 1)))[:, 0].tolist()
    present = graph.present_EM.any(axis=1).tolist()
    assert dict(zip(graph.entities, column, strict=True)) == {n: last.get(n, 0) for n in graph.entities}
    assert {n for n, there in zip(graph.entities, present, strict=True) if there} == set(last)
    assert rows >= len(last)


@MANY
@given(name=NAME)
def test_a_clean_name_is_clean_and_survives_a_line(name):
    try:
        clean = name_normalization.clean(name)
    except ValueError:
        return
    assert name_normalization.clean(clean) == clean
    assert not set(clean) & set("\t\n\r\0")
    assert keys.key(SECRET, name) == keys.key(SECRET, clean)


@MANY
@given(
    sets=st.lists(
        st.lists(
            st.text("abcdé\u0301e", min_size=1, max_size=4), unique_by=name_normalization.clean, max_size=8
        ),
        max_size=5,
    ),
    swap=st.randoms(use_true_random=False),
)
def test_every_clients_rows_are_found_in_the_union_whatever_the_order(sets, swap):
    clients = [keys.keys_for(SECRET, of) for of in sets]
    union_U16 = keys.union(clients)
    all_names = {name_normalization.clean(name) for of in sets for name in of}
    assert len(union_U16) == len(all_names)
    assert np.array_equal(keys.checked(union_U16, len(union_U16), "union"), union_U16)
    shuffled = [*clients]
    swap.shuffle(shuffled)
    assert np.array_equal(keys.union(shuffled), union_U16)
    value_of = {name: float(u) for u, name in enumerate(sorted(all_names))}
    server_U = np.zeros(len(union_U16))
    for of, keys_E16 in zip(sets, clients, strict=True):  # up
        server_U[keys.rows(union_U16, keys_E16)] = [value_of[name_normalization.clean(name)] for name in of]
    for of, keys_E16 in zip(sets, clients, strict=True):  # and down
        back_E = server_U[keys.rows(union_U16, keys_E16)]
        assert back_E.tolist() == [value_of[name_normalization.clean(name)] for name in of]


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 7), seed=st.integers(0, 2**32), rate=st.floats(0, 1), graph=st.integers(0, 5))
def test_no_deal_loses_a_fact(clients, seed, rate, graph):
    whole = random_graph(entities=15, relations=7, triples=80, seed=graph)
    dealt = partition(whole, clients, seed, rate)
    facts = [fact for client in dealt for fact in told(client.graph.with_triples(client.known()))]
    assert sorted(facts) == sorted(told(whole))
    assert sorted(r for client in dealt for r in client.relation_R.tolist()) == list(range(7))


@MANY
@given(facts=st.lists(st.tuples(NAME, NAME, NAME), max_size=6))
def test_whatever_facts_can_be_written_come_back(facts):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.tsv"
        try:
            files.write_triples(path, facts)
        except ValueError:
            return
        assert files.read_triples(path).triples == tuple(dict.fromkeys(facts))


def seeds() -> dict[str, bytes]:
    """Real files of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: Path(folder) / kind for kind in READERS}
        files.write_triples(paths["triples"], HOUSE)
        files.write_features(paths["features"], FeatureTable(("Zoë", "pump"), np.ones((2, 3), np.float32)))
        files.write_masks(paths["masks"], Masks(("Zoë", "pump"), ("text",), np.ones((2, 1), np.bool_)))
        return {kind: path.read_bytes() for kind, path in paths.items()}


READERS = {"triples": files.read_triples, "features": files.read_features, "masks": files.read_masks}
GOOD = seeds()
STEP = st.tuples(
    st.floats(0, 1),
    st.integers(0, 64),
    st.binary(max_size=16)
    | st.sampled_from([b"\t", b"\n", b"\r\n", b"#", b"\xff\xff\xff\x7f", b"\xed\xa0\x80"]),
)


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(sorted(READERS)), steps=st.lists(STEP, min_size=1, max_size=4))
def test_a_damaged_file_is_a_value_or_names_itself(kind, steps):
    data = GOOD[kind]
    for where, gone, content in steps:
        at = int(where * len(data))
        data = data[:at] + content + data[at + gone :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        said = ""
        try:
            READERS[kind](path)
        except Misconfigured as error:
            said = str(error)
        assert not said or str(path) in said
        assert len(said) < 1500
