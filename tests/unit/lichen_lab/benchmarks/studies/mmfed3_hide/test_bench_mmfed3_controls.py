"""Controls of ``lichen bench mmfed3_hide``: features that differ by client, embeddings replaced in rounds."""

from dataclasses import replace

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.mmfed3_hide import federation, fleets, uneven_features
from lichen_lab.benchmarks.studies.mmfed3_hide.federation import _fresh
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import GraphConditions
from lichen_lab.benchmarks.studies.mmfed3_hide.shared import task_of
from lichen_lab.simulation.training.workers import one_thread
from models.knowledge_graph.data.text_features import TextEncoder
from models.methods.mmfed3_hide.device_state import STRUCTURE
from tests.support.lab.mmfed3_study import TINY, quiet, small_fleet
from tests.support.methods.graph_cases import random_graph

HAS_CE = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]], np.bool_)
"""Entity 0 is at all clients, 3 at none."""


def test_bench_mmfed3_each_word_goes_to_one_client_that_has_the_entity() -> None:
    texts = ["a b c d e f g h", "only one", "other one", "nobody here"]
    dealt = uneven_features.dealt_texts(texts, HAS_CE, 0, 100.0)
    assert sorted(" ".join(client[0] for client in dealt).split()) == texts[0].split()
    assert all(client[0] for client in dealt)  # at a large alpha everyone gets some
    assert [dealt[0][1], dealt[1][2]] == texts[1:3]
    assert [client[3] for client in dealt] == [""] * 3
    assert dealt != uneven_features.dealt_texts(texts, HAS_CE, 1, 100.0)


def test_bench_mmfed3_each_number_goes_with_its_mark_to_one_client() -> None:
    values_EA = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    numeric_EF = np.concatenate([values_EA, np.ones_like(values_EA)], axis=1)
    dealt = uneven_features.dealt_numbers(numeric_EF, HAS_CE, 0, 0.1)
    held_E1 = HAS_CE.any(axis=0)[:, None]
    assert np.array_equal(sum(dealt), numeric_EF * held_E1)
    for has_E, x_EF in zip(HAS_CE, dealt, strict=True):
        assert not x_EF[~has_E].any()
        assert np.array_equal(x_EF[:, :3] != 0, x_EF[:, 3:] == 1)


def test_bench_mmfed3_features_differ_by_client_and_facts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph()
    texts = [f"entity number {n} of {n % 7} or more words" for n in range(len(graph.entities))]
    encoder = TextEncoder.fit(texts, 5)
    monkeypatch.setattr(uneven_features, "_texts", lambda _names: texts)
    monkeypatch.setattr(uneven_features, "_encoder", lambda _width: encoder)
    numeric = graph.features["numeric"]
    numeric_EF = np.concatenate([numeric, (numeric != 0).astype(np.float32)], axis=1)
    graph = replace(graph, features={**graph.features, "numeric": numeric_EF})
    same, apart = (
        fleets.dealt(graph, "made", 0, GraphConditions(rate=1.0, uneven=alpha)) for alpha in (0.0, 0.1)
    )
    for name, graph_of in same.devices.items():
        assert np.array_equal(graph_of.triples_N3, apart.devices[name].triples_N3)
        assert np.array_equal(graph_of.entity_keys_E16, apart.devices[name].entity_keys_E16)
    first, second = list(apart.devices.values())[:2]
    shared = {bytes(key): row for row, key in enumerate(first.entity_keys_E16)}
    pairs = [
        (shared[bytes(key)], row) for row, key in enumerate(second.entity_keys_E16) if bytes(key) in shared
    ]
    assert pairs
    for own, other in pairs:
        assert not (first.features["numeric"][own] * second.features["numeric"][other]).any()
    assert apart.deal == same.deal  # a warm start of structure alone is the same


def test_bench_mmfed3_replaced_embeddings_begin_each_round_as_the_fleets() -> None:
    setting = replace(TINY, warmup=0, options={"dual": True})
    fleet = small_fleet()
    (group,) = _fresh(fleet, task_of(fleet, setting, 0))
    with one_thread():
        group.round(1)
    assert all(STRUCTURE in device.private for device in group.gateways)
    before = [dict(device.private) for device in group.gateways]
    federation.forget_own_rows(group.gateways)
    for device, kept in zip(group.gateways, before, strict=True):
        gone = kept.keys() - device.private.keys()
        assert gone == {name for name in kept if name == STRUCTURE or name.startswith("table/own/")}
        assert len(gone) == 4
    federation._STARTS.clear()
    runs = [
        federation.run(replace(fleet, replaced=replaced), replace(setting, rounds=3), 0, quiet)
        for replaced in (False, True)
    ]
    assert runs[0].looks[0].test == runs[1].looks[0].test  # nothing was kept before the first round
    assert runs[0].looks[-1].test != runs[1].looks[-1].test
