"""A device's round: what it learns, sends and keeps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.knowledge_graph.data.embedding_tables import ENTITIES, NAMES, RELATIONS, tables
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.data.merging import merge
from models.methods.mmfed3_hide.device_state import CARRY, STRUCTURE
from models.methods.mmfed3_hide.evaluation import ranked, set_aside
from protocol.errors import Misconfigured, Refused, Transient
from tests.support.methods.graph_cases import SECRET, random_graph
from tests.support.methods.mmfed3_cases import (
    DIM,
    SPEC,
    Fleet,
    context,
    fleet_graphs,
    frame_of,
    keyed,
    task_of,
)

CLIENT = SPEC.client()
RECIPES = {
    "MMFeD3-HidE": {},
    "FedE": {"fusion": "structure", "dual": False},
    "MMFedE": {"imputer": "none", "dual": False, "fusion": "weighted"},
    "MMFedE-AE": {"imputer": "ae", "dual": False, "fusion": "average"},
    "MMFedEC-MMIN": {"imputer": "mmin", "dual": False, "contrast": 0.1, "fusion": "concat", "dense_lr": 0.02},
    "MMFedProx-CRA": {"imputer": "cra", "dual": False, "prox": 0.01, "fusion": "gated_average"},
    "MMFedLU": {"imputer": "none", "logits_way": "up", "feature": 0.0},
    "views": {"fusion": "split", "warmup_rounds": 1},
    "views, contrast": {"fusion": "split", "warmup_rounds": 1, "dual": False, "contrast": 0.1},
    "TransE, private negatives": {"score": "transe", "negatives_of": "question", "keep_moments": False},
    "ComplEx": {"score": "complex", "gamma": 1.0, "steps": 2, "gradient_steps": None, "hide_share": 0.0},
}


def learning(count=2, seed=0, **options) -> Fleet:
    task = task_of(**options)
    graphs = fleet_graphs(task, count, seed)
    return Fleet(task, {f"d{i}": graph for i, graph in enumerate(graphs)})


def structure(**options) -> Fleet:
    """What a device holds is then what it predicts with."""
    return learning(fusion="structure", dual=False, **options)


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_learns_its_training_triples(recipe):
    fleet = learning(lr=0.1, validation=0.0, **({"epochs": 3} | RECIPES[recipe]))
    graph, found = fleet.graphs["d0"], []
    for _ in range(5):
        fleet.step()
        found.append(ranked(fleet.task, fleet.private["d0"], graph, graph.triples_N3, [graph.triples_N3]).mrr)
    assert found[-1] > found[0]
    assert found[-1] > 0.15  # by chance about .08
    for tensors in (fleet.private["d0"], fleet.results["d0"].tensors):
        assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in tensors.values())
    own = tables(fleet.private["d0"])
    assert own is not None
    views = 3 if recipe.startswith("views") else 1
    assert own.entities_EVD.shape == (len(graph.entity_keys_E16), views, DIM)
    assert len(own.relations_XC) == 2 * len(graph.relation_keys_R16)


def test_a_graph_with_structure_is_completed():
    """Relation r leads from entity e to e + r + 1: what did not train follows."""
    count, steps = 40, 8
    head, relation = (x.ravel() for x in np.meshgrid(np.arange(count), np.arange(steps)))
    triples_N3 = np.stack([head, relation, (head + relation + 1) % count], axis=1)
    names = tuple(f"e{i}" for i in range(count)), tuple(f"r{i}" for i in range(steps))
    graph = random_graph(count, steps, 10)
    ring = replace(graph, entities=names[0], relations=names[1], triples_N3=triples_N3)
    fleet = structure(lr=0.1, epochs=8)
    fleet.graphs = {"d0": keyed(ring, fleet.task)}
    for _ in range(4):
        fleet.step()
    assert fleet.mrr() > 0.4


@pytest.mark.long
def test_the_same_seed_gives_the_same_bytes():
    def frames(seed):
        fleet = learning(seed=0)
        for _ in range(2):
            fleet.step()
        at = replace(context(fleet.task, "d0", 3), seed=seed)
        result = CLIENT.train(at, fleet.graphs["d0"], fleet.state, fleet.private["d0"])
        private = {name: x.tobytes() for name, x in result.private.items()}
        return frame_of(fleet.task, "d0", fleet.graphs["d0"], result), private

    assert frames(5) == frames(5)
    assert frames(5)[0] != frames(6)[0]


@pytest.mark.parametrize("recipe", ["MMFedE", "MMFedEC-MMIN", "MMFeD3-HidE", "views"])
def test_all_recipes_share_the_warm_start(recipe):
    options = RECIPES[recipe] | {"warmup_rounds": 2}
    one, other = learning(**options), structure()
    for _ in range(2):
        one.step()
        other.step()
    for name, x in other.results["d0"].tensors.items():
        np.testing.assert_array_equal(one.results["d0"].tensors[name], x)
    assert one.results["d0"].metrics["mrr"] == other.results["d0"].metrics["mrr"]
    assert not any(name.startswith("projection") for name in one.results["d0"].tensors)
    one.step()
    assert "projection/text/weight" in one.results["d0"].tensors


def test_with_dual_the_fleets_copy_travels_and_the_own_stays():
    fleet = learning(count=1, codec="float32")
    for _ in range(2):
        fleet.step()
    own_ED = fleet.private["d0"][STRUCTURE]
    order = np.lexsort(fleet.graphs["d0"].entity_keys_E16.T[::-1])
    assert np.abs(own_ED[order] - fleet.state["rows/d0"]["rows/d0/value"]).max() > 0.01
    assert np.abs(own_ED - fleet.private["d0"][ENTITIES][:, 0]).max() > 0  # fused and imputed


def reordered(graph: KeyedGraph, seed: int) -> KeyedGraph:
    """The same graph with entities, relations and triples in another order."""
    rng = np.random.default_rng(seed)
    e, r = rng.permutation(len(graph.entity_keys_E16)), rng.permutation(len(graph.relation_keys_R16))
    at_e, at_r = np.argsort(e), np.argsort(r)
    head, relation, tail = graph.triples_N3.T
    return KeyedGraph(
        graph.entity_keys_E16[e],
        graph.relation_keys_R16[r],
        np.stack([at_e[head], at_r[relation], at_e[tail]], axis=1),
        {name: x_EF[e] for name, x_EF in graph.features.items()},
        graph.present_EM[e],
    )


def test_a_graph_in_another_order_keeps_what_it_learned():
    """No step is so small that it shows: what comes out is what was kept, found by key."""
    fleet = learning(count=1)
    fleet.step()
    still = fleet.task.config | {"lr": 1e-9, "lr_min": 1e-9, "dense_lr": 1e-9}
    task = fleet.task.model_copy(update={"config": still})
    graph = fleet.graphs["d0"]
    other = reordered(graph, 1)
    found = [
        CLIENT.train(context(task, "d0", 2), g, fleet.state, fleet.private["d0"]) for g in (graph, other)
    ]
    one, two = (tables(result.private) for result in found)
    assert one is not None
    assert two is not None
    e = [two.entity(key.tobytes()) for key in one.entity_keys_E16]
    r = [two.relation(key.tobytes()) for key in one.relation_keys_R16]
    np.testing.assert_allclose(two.entities_EVD[e], one.entities_EVD, atol=1e-2)  # noise of HidE
    half = len(r)
    np.testing.assert_allclose(two.relations_XC[r], one.relations_XC[:half], atol=1e-6)
    np.testing.assert_allclose(two.relations_XC[half:][r], one.relations_XC[half:], atol=1e-6)
    for name in (STRUCTURE, CARRY, "table/fleet/mean", "table/own/steps"):
        assert found[1].private[name].shape == found[0].private[name].shape
    np.testing.assert_allclose(found[1].private[STRUCTURE][e], found[0].private[STRUCTURE], atol=1e-6)
    for name in ("keys/sent", "rows/delta"):
        np.testing.assert_allclose(found[1].tensors[name], found[0].tensors[name], atol=1e-6)


def test_a_graph_that_grew_goes_on_and_brings_its_new_entities():
    fleet, graph = learning(count=1), random_graph()
    fleet.step()
    grown, counts = merge(graph, [("e0", "r0", "a new thing"), ("a new thing", "a new relation", "e1")])
    assert (counts.entities, counts.relations) == (1, 1)
    before = tables(fleet.private["d0"])
    fleet.graphs["d0"] = keyed(grown, fleet.task)
    (update,) = fleet.step()
    assert update.tensors["keys/new"].shape == (1, 16)
    assert len(fleet.state["rows/d0"]["rows/d0/keys"]) == len(grown.entities)
    after = tables(fleet.private["d0"])
    assert before is not None
    assert after is not None
    assert after.entities_EVD.shape[0] == before.entities_EVD.shape[0] + 1
    assert len(after.relations_XC) == len(before.relations_XC) + 2
    steps = fleet.private["d0"]["table/relations/steps"]
    assert steps.min() == 0 or steps[[12, 25]].max() < steps[:12].max()


def test_what_was_kept_of_another_shape_or_damaged_is_as_if_it_were_not_there():
    fleet = learning(count=1)
    fleet.step()
    bad = {
        name: np.full_like(x, np.nan) if i % 2 else np.zeros((3, 2), np.float32)
        for i, (name, x) in enumerate(fleet.private["d0"].items())
        if name not in NAMES or name == RELATIONS
    }
    fleet.private["d0"] = fleet.private["d0"] | bad
    fleet.step()
    assert all(np.isfinite(x).all() for x in fleet.private["d0"].values())


def test_the_same_triples_judge_however_the_graph_grows():
    task = task_of()
    graph = random_graph(triples=2000)
    one = set_aside(keyed(graph, task), 0.1)
    assert 0.05 < one.mean() < 0.15
    grown, _ = merge(graph, [("e0", "another", "x")])
    np.testing.assert_array_equal(set_aside(keyed(grown, task), 0.1)[:2000], one)
    assert (set_aside(keyed(graph, task), 0.2) >= one).all()
    few = KeyedGraph.of(graph.with_triples(graph.triples_N3[one][:2]), SECRET, task)
    assert not set_aside(few, 0.1).any()  # something must train


def test_what_judges_does_not_train():
    fleet = structure(count=1, validation=0.3)
    fleet.step()
    metrics = fleet.results["d0"].metrics
    assert metrics["triples"] + metrics["judged"] == len(fleet.graphs["d0"])
    unjudged = structure(count=1, validation=0.0)
    unjudged.step()
    assert "mrr" not in unjudged.results["d0"].metrics


def test_a_device_without_features_trains_and_sends_no_projection():
    fleet = learning(count=1)
    graph = fleet.graphs["d0"]
    bare = replace(
        graph,
        features={name: np.zeros_like(x_EF) for name, x_EF in graph.features.items()},
        present_EM=np.zeros_like(graph.present_EM),
    )
    result = CLIENT.train(context(fleet.task), bare, {}, {})
    assert set(result.tensors) == {"keys/new", "keys/sent", "rows/delta"}
    assert np.isfinite(result.private[ENTITIES]).all()


def test_a_task_without_modalities_is_learned_by_structure():
    fleet = learning(count=2)
    task = fleet.task.model_copy(
        update={"graph": fleet.task.graph.model_copy(update={"features": ()}), "config": {"dim": DIM}}
    )
    graphs = [keyed(random_graph(seed=s), task) for s in (0, 1)]
    bare = Fleet(task, {f"d{i}": graph for i, graph in enumerate(graphs)})
    bare.step()
    bare.step()
    assert sorted(bare.state) == ["rows/d0", "rows/d1"]


def test_a_graph_of_nothing_waits_for_facts():
    fleet = learning(count=1)
    graph = fleet.graphs["d0"]
    with pytest.raises(Transient, match="nothing to learn from: 0 triples"):
        CLIENT.train(context(fleet.task), replace(graph, triples_N3=graph.triples_N3[:0]), {}, {})


def test_training_that_diverges_is_refused():
    fleet = learning(count=1)
    graph = fleet.graphs["d0"]
    huge = replace(graph, features={n: x_EF * np.float32(1e38) for n, x_EF in graph.features.items()})
    with pytest.raises(Refused, match="diverged"):
        CLIENT.train(context(fleet.task), huge, fleet.state, {})


def test_a_version_cannot_be_judged_and_says_so():
    fleet = learning(count=1)
    with pytest.raises(Misconfigured, match="no relations to judge"):
        CLIENT.evaluate(fleet.task, fleet.graphs["d0"], fleet.state)
    with pytest.raises(Misconfigured, match="not trained"):
        ranked(fleet.task, {}, fleet.graphs["d0"], fleet.graphs["d0"].triples_N3, [])


def test_the_deployed_model_answers_from_the_devices_tables():
    fleet = learning(count=1, fusion="split", imputer="none", dual=False)
    fleet.step()
    own = tables(fleet.private["d0"])
    assert own is not None
    model = CLIENT.inference_model(fleet.task, {})
    head, relation = fleet.graphs["d0"].triples_N3[:3, :2].T
    tails_BK, scores_BK = model(
        *(torch.from_numpy(x.copy()) for x in (head, relation, own.entities_EVD, own.relations_XC))
    )
    assert tails_BK.shape == scores_BK.shape == (3, fleet.task.graph.top_k)
    assert bool((scores_BK.diff(dim=1) <= 0).all())
