"""The pieces of the knowledge-graph demo without processes: parts, files, questions, search, telling."""

import json
from pathlib import Path

import numpy as np
import pytest

from coordinator.config.coordinator import load_settings
from coordinator.task import load_task
from edge_agent.config import agent as agent_config
from lichen_lab.demo import plans
from lichen_lab.demo.core import side_jobs
from lichen_lab.demo.core.scenario import Layout, Options
from lichen_lab.demo.core.traffic import TrafficTurn as Moved
from lichen_lab.demo.plans.mmfed3_hide import collect_results, devices, evaluation, leak_search, parts
from lichen_lab.demo.plans.mmfed3_hide.leak_search import Searcher
from lichen_lab.demo.plans.mmfed3_hide.prepare import coordinator_config, gateway_config, initial_results
from lichen_lab.simulation.data.sets import small_graphs
from lichen_lab.simulation.processes.fleet_files import write_toml
from models.knowledge_graph.data.embedding_tables import Tables
from models.knowledge_graph.data.files import read_features, read_triples
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.keys import RELATIONS, key
from models.knowledge_graph.data.merging import empty, merge
from models.methods.mmfed3_hide import config_of
from models.registry import method
from protocol.errors import Misconfigured, Transient
from protocol.frames.frame import digest
from protocol.messages import BlobRef, ModelPointer, encode
from protocol.topics import Kind, broadcast_topic, device_topic
from tests.support.methods.graph_cases import SECRET

ROUNDS = 6
TASK = devices.task(ROUNDS)
OPTIONS = Options(Path("unused"), rounds=ROUNDS)


@pytest.fixture(scope="module")
def made() -> KnowledgeGraph:
    """Facts of all sites' relations among made-up notions, with those among them that come later."""
    rng = np.random.default_rng(0)
    late = devices.growing().later
    names = (*late, *(f"notion_number_{n}" for n in range(30)))
    facts = [
        (names[a], relation, names[b])
        for site in devices.SITES
        for relation in site.relations
        for a, b in rng.integers(0, len(names), (40, 2)).tolist()
    ]
    facts += [("antibiotic", "treats", f"notion_number_{n}") for n in range(20)]
    graph, _ = merge(empty(), facts)
    x_EF = rng.normal(size=(len(graph.entities), devices.TEXT_WIDTH)).astype(np.float32)
    present_EM = np.ones((len(graph.entities), 1), np.bool_)
    return KnowledgeGraph(graph.entities, graph.relations, graph.triples_N3, {devices.TEXT: x_EF}, present_EM)


def test_the_demo_is_found_and_every_relation_is_one_sites() -> None:
    assert plans.demo("mmfed3_hide").prepare is not None
    relations = [relation for site in devices.SITES for relation in site.relations]
    assert len(relations) == len(set(relations)) == 46, "of UMLS, all"
    assert [site.name for site in devices.SITES if site.late] == ["pharmacy"]
    spec = method(TASK.method)
    spec.configure(TASK)
    spec.configure(TASK.model_copy(update={"config": {**TASK.config, **devices.ALONE}}))
    for rounds in (1, 2, 6, 20):
        assert 1 <= devices.grow_round(rounds) <= devices.join_round(rounds) + 1


def test_a_site_has_its_own_relations_and_what_is_held_out_is_nobodys(made: KnowledgeGraph) -> None:
    dealt = [parts.site_part(made, site, 0) for site in devices.SITES]
    for site, own in zip(devices.SITES, dealt, strict=True):
        assert {relation for _, relation, _ in (*own.now, *own.later)} <= set(site.relations)
        facts = {*own.now, *own.later, *own.held_out}
        assert len(facts) == len(own.now) + len(own.later) + len(own.held_out)
        assert bool(own.later) == bool(site.later)
        early = {name for head, _, tail in own.now for name in (head, tail)}
        assert early.isdisjoint(site.later)
        assert own.entities == (len(early), len(early | {n for h, _, t in own.later for n in (h, t)}))
        assert 0.2 < len(own.text.entities) / own.entities[1] < 0.8
    again = parts.site_part(made, devices.SITES[0], 0)
    assert again.now == dealt[0].now
    assert parts.site_part(made, devices.SITES[0], 1).now != again.now


def test_questions_have_held_out_tails_and_the_new_entitys_come_first(made: KnowledgeGraph) -> None:
    site = devices.growing()
    own = parts.site_part(made, site, 0)
    asked = parts.questions(own, 8, site.first)
    assert asked[0] == ("antibiotic", "treats")
    assert len(asked) == len(set(asked)) == 8
    assert {(head, relation) for head, relation, _ in own.held_out} >= set(asked)
    assert len({relation for _, relation in asked}) > 3
    assert parts.questions(own, 10_000) != []


def test_the_files_and_configurations_are_what_the_daemons_read(made: KnowledgeGraph, tmp_path: Path) -> None:
    layout = Layout(tmp_path, 1884)
    for site in devices.SITES:
        own = parts.site_part(made, site, 0)
        folder = devices.folder(layout, site.name)
        parts.write(folder, own)
        assert read_triples(folder / devices.TRIPLES).triples == own.now
        assert read_features(folder / devices.TEXT_FILE).entities == own.text.entities
        parts.append(folder, own.later)
        assert read_triples(folder / devices.TRIPLES).triples == (*own.now, *own.later)
        write_toml(layout.config(site.name), gateway_config(layout, site.name))
        read = agent_config.read(layout.config(site.name))
        assert read.graph is not None
        assert read.graph.triples == (folder / devices.TRIPLES,)
    write_toml(layout.config("coordinator"), coordinator_config(layout, ROUNDS))
    layout.write_task(TASK)
    assert load_task(load_settings(layout.config("coordinator")))[0] == TASK
    assert "secret" not in layout.config("coordinator").read_text()


def test_where_umls_is_not_here_it_is_fetched_and_what_goes_wrong_is_said(
    made: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[bool] = []

    class Known:
        graph = made

    def load(name: str, width: int) -> Known:
        assert (name, width) == ("umls", devices.TEXT_WIDTH)
        if not fetched:
            raise Misconfigured("not here")
        return Known()

    monkeypatch.setattr(small_graphs, "load", load)
    monkeypatch.setattr(small_graphs, "fetch", lambda: fetched.append(True))
    assert parts.umls() is made
    assert fetched == [True]

    def fails() -> None:
        raise Transient("no network")

    fetched.clear()
    monkeypatch.setattr(small_graphs, "fetch", fails)
    with pytest.raises(Misconfigured, match="umls is not here, and did not come: no network"):
        parts.umls()


def test_the_search_finds_what_must_not_travel_in_messages_and_over_the_edges_of_chunks(
    made: KnowledgeGraph,
) -> None:
    rows = dict(zip(made.entities, made.features[devices.TEXT], strict=True))
    sought = leak_search.secrets(SECRET, made.entities, made.relations, rows)
    row = rows["notion_number_3"]
    secret_bytes = {
        "names: notion_number_7": b'{"why": "notion_number_7"}',
        "names: manifestation_of": b"....manifestation_of",
        "relation keys: treats": key(SECRET, "treats", RELATIONS),
        "rows of features: notion_number_3": row.astype("<f2").tobytes(),
        "the secret: the fleet's secret": b"x" + SECRET,
    }
    for what, data in secret_bytes.items():
        clean, dirty = Searcher("demo"), Searcher("demo")
        for seen in (clean, dirty):
            seen.apply("lichen/v1/demo/b/round", b'{"treats": 1}')
            seen.apply("not/ours", b"\x00")
            seen.apply(device_topic("demo", "ward", Kind.UPDATE), key(SECRET, "notion_number_1"))
        cut = len(data) // 2
        for at, chunk in ((1, data[cut:]), (0, data[:cut])):
            dirty.apply(device_topic("demo", "ward", Kind.UP_BLOB, "0" * 64, at), chunk)
        found = leak_search.search_outcome(dirty, sought, SECRET, made.entities)
        assert found.found == (what,)
        assert found.messages == 5
        assert leak_search.search_outcome(clean, sought, SECRET, made.entities).found == ()
        assert found.keys == 1, "that an entity's key is seen shows that the search works"


def test_a_fleets_bundle_is_no_cost_of_learning() -> None:
    seen = Searcher("demo")
    pointer = ModelPointer(task="t", version=2, bundle=BlobRef(digest=digest(b"zip"), size=3))
    seen.apply(broadcast_topic("demo", Kind.FLEET_MODEL), encode(pointer))
    seen.apply(device_topic("demo", "ward", Kind.DOWN_BLOB, digest(b"zip"), 0), b"zip")
    seen.apply(device_topic("demo", "ward", Kind.DOWN_BLOB, digest(b"rows"), 0), b"rows")
    assert seen.turns()["ward"][0].model_bytes == len(b"rows")


def test_rounds_and_turns_are_told_with_bytes_beside_float32(made: KnowledgeGraph) -> None:
    dealt = {site.name: parts.site_part(made, site, 0) for site in devices.SITES}
    results = initial_results(made, dealt)
    ward = results.gateway("ward")
    update = {"device": "ward", "lost": False, "metrics": {"mrr": 0.25}}
    rounds = [
        {"round": 1, "metrics": {}, "bytes_up": 5, "bytes_down": 7,
         "updates": [{**update, "samples": ward.triples}]},
        {"round": 2, "metrics": {"mrr": 0.5}, "bytes_up": 1, "bytes_down": 1,
         "updates": [{**update, "samples": ward.triples + ward.later}]},
        {"round": 3, "metrics": {}, "bytes_up": None, "bytes_down": None, "updates": []},
    ]  # fmt: skip
    collect_results.take_history(
        results, TASK, {"rounds": rounds}, {"ward": {2: Moved({"rows/ward": 9, "bundle": 99}, 33)}}
    )
    assert [(one.round, one.accuracy, one.bytes_up, one.accepted) for one in results.rounds] == [
        (1, None, 5, ("ward",)),
        (2, 0.5, 6, ("ward",)),
    ]
    first, second = ward.turns
    dim = config_of(TASK).dim
    assert (first.up, first.down, first.float32) == (
        0,
        0,
        4 * dim * (ward.entities_first + devices.TEXT_WIDTH),
    )
    assert (second.up, second.down, second.mrr) == (33, 9, 0.25)
    assert second.float32 == 4 * dim * (ward.entities + devices.TEXT_WIDTH)


def test_answers_are_told_without_what_the_gateway_knows(made: KnowledgeGraph, tmp_path: Path) -> None:
    dealt = {site.name: parts.site_part(made, site, 0) for site in devices.SITES}
    ward = initial_results(made, dealt).gateway("ward")
    known, answer = dealt["ward"].later, ward.answers[0]
    fact = next(tail for head, relation, tail in known if (head, relation) == ("antibiotic", "treats"))
    asked = {"head": "antibiotic", "relation": "treats"}
    lines = [
        {**asked, "tails": [], "why": "is in no fact of this device"},
        {**asked, "tails": [{"entity": fact, "score": 2.0, "known": True}, {"entity": answer.truth[0]}]},
    ]
    path = tmp_path / "answers.jsonl"
    path.with_name("answers.jsonl.1").write_text(json.dumps(lines[0]) + "\n")
    path.write_text(json.dumps(lines[1]) + '\n{"head": "cut o')
    collect_results.take_answers(ward, side_jobs.lines(path), known)
    assert (answer.before, answer.after) == (None, (answer.truth[0],))
    assert answer.place(answer.after) == 1
    assert ward.answers[1].after is None


def test_a_gateways_tables_are_judged_by_filtered_ranks() -> None:
    names, dim = ("a", "b", "c", "d"), 4
    task = TASK.model_copy(update={"config": {"dim": dim, "score": "transe"}})
    e_ED = np.array([[0.0] * 4, [1.0] * 4, [1.1] * 4, [9.0] * 4], np.float32)
    own = Tables(
        e_ED[:, None],
        np.frombuffer(b"".join(key(SECRET, name) for name in names), np.uint8).reshape(-1, 16),
        np.array([[1.0] * 4, [-1.1] * 4], np.float32),
        np.frombuffer(key(SECRET, "near", RELATIONS), np.uint8).reshape(1, 16),
    )
    # a + 1 is nearest to b, then c; c - 1.1 is nearest to a.
    asked = [("a", "near", "c")]
    assert evaluation.scores(task, own, SECRET, asked, []).mrr == pytest.approx((1 / 2 + 1) / 2)
    found = evaluation.scores(task, own, SECRET, asked, [("a", "near", "b")])
    assert (found.mrr, found.hits1, found.questions) == (1.0, 1.0, 2), "b is known: no rival"
    with pytest.raises(ValueError, match="tables lack one"):
        evaluation.scores(task, own, SECRET, [("a", "near", "z")], [])
