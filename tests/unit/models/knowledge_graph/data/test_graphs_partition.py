"""A graph dealt out: nothing lost, no relation at two clients, the same seed the same clients."""

from itertools import combinations

import numpy as np
import pytest

from models.knowledge_graph.data import partition
from models.knowledge_graph.data.merging import codes
from tests.support.methods.graph_cases import random_graph

GRAPH = random_graph(entities=80, relations=13, triples=900)
CLIENTS = partition.partition(GRAPH, 3, seed=5, rate=0.5)


def whole(client: partition.KnowledgeGraphClient, triples_N3: np.ndarray) -> set[int]:
    """Facts of a client by the whole graph's indices."""
    head_N, relation_N, tail_N = triples_N3.T
    parts = client.entity_E[head_N], client.relation_R[relation_N], client.entity_E[tail_N]
    return set(codes(np.stack(parts, axis=1)).tolist())


def test_every_fact_is_at_exactly_one_client():
    dealt = [whole(client, client.known()) for client in CLIENTS]
    assert set().union(*dealt) == set(codes(GRAPH.triples_N3).tolist())
    assert sum(map(len, dealt)) == len(GRAPH)


def test_clients_share_entities_and_no_relation():
    assert sorted(len(client.relation_R) for client in CLIENTS) == [4, 4, 5]
    for one, other in combinations(CLIENTS, 2):
        assert not set(one.graph.relations) & set(other.graph.relations)
        assert set(one.graph.entities) & set(other.graph.entities)


def test_a_client_has_the_entities_of_its_facts_with_their_names_and_features():
    for client in CLIENTS:
        known_N3 = client.known()
        assert np.array_equal(np.unique(known_N3[:, [0, 2]]), np.arange(len(client.graph.entities)))
        assert np.array_equal(np.unique(known_N3[:, 1]), np.arange(len(client.graph.relations)))
        assert client.graph.entities == tuple(GRAPH.entities[e] for e in client.entity_E)
        assert client.graph.relations == tuple(GRAPH.relations[r] for r in client.relation_R)
        for m, name in enumerate(GRAPH.modalities):
            there_E = client.graph.present_EM[:, m]
            assert not (there_E & ~GRAPH.present_EM[client.entity_E, m]).any()
            own_EF, all_EF = client.graph.features[name], GRAPH.features[name]
            assert np.array_equal(own_EF[there_E], all_EF[client.entity_E][there_E])


def test_facts_are_split_eight_to_one_to_one():
    for client in CLIENTS:
        count = len(client.known())
        train, valid, test = len(client.graph), len(client.valid_N3), len(client.test_N3)
        assert train + valid + test == count
        assert (train, valid, test) == pytest.approx((0.8 * count, 0.1 * count, 0.1 * count), abs=1)


@pytest.mark.parametrize("count", range(12))
def test_no_fact_is_lost_in_a_split_however_few_there_are(count):
    triples_N3 = np.arange(3 * count).reshape(count, 3)
    parts = partition.split(triples_N3, (8, 1, 1), (1,))
    assert len(parts) == 3
    assert sorted(np.concatenate(parts).tolist()) == triples_N3.tolist()
    assert [len(part) for part in partition.split(triples_N3, (1, 0, 0), (1,))] == [count, 0, 0]


def test_the_same_seed_deals_the_same_and_another_does_not():
    again, other = (partition.partition(GRAPH, 3, seed=seed, rate=0.5) for seed in (5, 6))
    for one, two in zip(CLIENTS, again, strict=True):
        assert one.graph.entities == two.graph.entities
        assert np.array_equal(one.known(), two.known())
        assert np.array_equal(one.graph.present_EM, two.graph.present_EM)
    assert [client.graph.relations for client in other] != [client.graph.relations for client in CLIENTS]


def test_the_rate_changes_the_masks_and_nothing_else():
    full, none = (partition.partition(GRAPH, 3, seed=5, rate=rate) for rate in (1.0, 0.0))
    for half, all_, bare in zip(CLIENTS, full, none, strict=True):
        assert np.array_equal(half.known(), all_.known())
        assert np.array_equal(all_.graph.present_EM, GRAPH.present_EM[all_.entity_E])
        assert not (half.graph.present_EM & ~all_.graph.present_EM).any()
        assert not bare.graph.present_EM.any()


def test_clients_lack_different_features_of_the_entities_that_they_share():
    whole = GRAPH.masked(np.ones_like(GRAPH.present_EM))
    for one, other in combinations(CLIENTS, 2):
        shared = sorted(set(one.graph.entities) & set(other.graph.entities))
        rows = [[client.graph.entities.index(name) for name in shared] for client in (one, other)]
        there = whole.present_EM[[whole.entities.index(name) for name in shared]]
        has = [client.graph.present_EM[of][there] for client, of in zip((one, other), rows, strict=True)]
        # of two fair coins, half agree; five standard errors of a share
        assert np.mean(has[0] == has[1]) == pytest.approx(0.5, abs=2.5 / len(has[0]) ** 0.5)


def test_masks_are_bernoulli_for_each_entity_modality_and_client():
    graph = random_graph(entities=4000, relations=4, triples=10)
    one, other = (partition.bernoulli(graph, 0.3, (7, c, 2)) for c in range(2))
    for mask_EM in (one, other):
        # four standard errors of a share of 4,000
        assert mask_EM.mean(axis=0) == pytest.approx([0.3, 0.3], abs=4 * (0.21 / 4000) ** 0.5)
    assert (one & other).mean() == pytest.approx(0.09, abs=4 * (0.0819 / 8000) ** 0.5)
    assert one.all(axis=1).mean() == pytest.approx(0.09, abs=4 * (0.0819 / 4000) ** 0.5)
    assert not (one & ~partition.bernoulli(graph, 0.8, (7, 0, 2))).any()


@pytest.mark.parametrize("clients", [0, 14])
def test_there_are_no_clients_without_a_relation(clients):
    with pytest.raises(ValueError, match=f"13 relations cannot be dealt to {clients} clients"):
        partition.partition(GRAPH, clients, seed=0)


def test_shares_and_rates_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"rate 1\.5"):
        partition.bernoulli(GRAPH, 1.5, (0,))
    for ratio in ((0, 0, 0), (8, -1, 1)):
        with pytest.raises(ValueError, match="shares"):
            partition.split(GRAPH.triples_N3, ratio, (0,))
