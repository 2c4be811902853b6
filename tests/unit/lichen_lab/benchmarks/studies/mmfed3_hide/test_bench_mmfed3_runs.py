"""Runs of ``lichen bench mmfed3_hide``: who has what, the shared warm start, bounds; on a made graph."""

from dataclasses import replace

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.mmfed3_hide import federation, fleets
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.federation import _fresh, _look, whole_bytes
from lichen_lab.benchmarks.studies.mmfed3_hide.parts import throughput as speed
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import STRUCTURE, KnowledgeGraphFleet
from lichen_lab.benchmarks.studies.mmfed3_hide.shared import task_of
from lichen_lab.simulation.training.downlink.downloads import Downloads
from lichen_lab.simulation.training.workers import one_thread
from models.knowledge_graph.data.partition import partition
from protocol.frames.tensors import Codec
from tests.support.lab.mmfed3_study import TINY, quiet, small_fleet
from tests.support.methods.graph_cases import random_graph


def test_bench_mmfed3_the_busiest_entities_are_kept_with_their_facts_alone() -> None:
    graph = random_graph(entities=30, relations=40, triples=120)
    few = fleets.busiest(graph, 5)
    degree = np.bincount(graph.triples_N3[:, [0, 2]].ravel(), minlength=30)
    kept = {int(name[1:]) for name in few.entities}
    assert all(degree[e] >= max(degree[o] for o in range(30) if o not in kept) for e in kept)
    whole = {tuple(t) for t in graph.triples_N3.tolist()}
    inner = {t for t in whole if {t[0], t[2]} <= {*map(int, np.argsort(-degree, kind="stable")[:5])}}
    names = [
        (int(few.entities[h][1:]), int(few.relations[r][1:]), int(few.entities[t][1:]))
        for h, r, t in few.triples_N3
    ]
    assert set(names) == inner
    assert set(few.triples_N3[:, 1].tolist()) == set(range(len(few.relations)))


def test_bench_mmfed3_the_centre_has_what_clients_train_on_and_what_any_of_them_has() -> None:
    graph = random_graph()
    clients = partition(graph, 3, 0, 0.5)
    whole = fleets.together(graph, clients)
    assert len(whole) == sum(len(client.graph) for client in clients) < len(graph)
    held = {
        (client.entity_E[h], client.relation_R[r], client.entity_E[t])
        for client in clients
        for h, r, t in np.concatenate([client.valid_N3, client.test_N3])
    }
    assert not held & {tuple(t) for t in whole.triples_N3.tolist()}
    anyone = np.zeros_like(graph.present_EM)
    for client in clients:
        anyone[client.entity_E] |= client.graph.present_EM
    assert np.array_equal(whole.present_EM, anyone)
    assert {judge.holder for judge in small_fleet(who="centre").judges} == {fleets.CENTRE}


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{}, {"fusion": "split"}, {"dual": False, "contrast": 0.1}, {"lr_decay": 0.5}]
)
def test_bench_mmfed3_a_shared_warm_start_is_what_each_method_would_have_made(
    options: dict[str, object],
) -> None:
    fleet, two = small_fleet(), replace(TINY, rounds=4, warmup=2)
    setting = replace(two, options=options)
    federation._STARTS.clear()
    federation.run(fleet, replace(two, options=STRUCTURE), 0, quiet)
    outcome = federation.run(fleet, setting, 0, quiet)
    assert outcome.refused == 0
    task = task_of(fleet, setting, 0)
    groups = _fresh(fleet, task)
    with one_thread():
        for round_ in (1, 2, 3, 4):
            groups[0].round(round_)
            if round_ > two.warmup:
                plain = _look(task, fleet.judges, groups, round_)
                told = outcome.looks[round_ - two.warmup - 1]
                assert replace(told, cpu_s=0.0) == replace(plain, cpu_s=0.0)


def test_bench_mmfed3_a_run_is_the_same_whatever_ran_before() -> None:
    runs = []
    for rate in (0.5, 1.0):
        federation._STARTS.clear()
        federation.run(small_fleet(rate=rate), TINY, 0, quiet)
        outcome = federation.run(small_fleet(rate=0.5), TINY, 0, quiet)
        runs.append([(look.round, look.valid, look.test) for look in outcome.looks])
        runs.append([outcome.bytes_up, outcome.bytes_down, outcome.bytes_whole])
        assert len(federation._STARTS) == 1
    assert runs[:2] == runs[2:]


def test_bench_mmfed3_who_learns_alone_learns_nothing_of_others() -> None:
    whole = small_fleet(who="alone")
    name = next(iter(whole.devices))
    one = replace(whole, devices={name: whole.devices[name]}, judges=whole.judges[:1])
    runs = []
    for fleet in (whole, one, replace(whole, apart=False)):
        federation._STARTS.clear()
        outcome = federation.run(fleet, TINY, 0, quiet)
        runs.append(_look_of(fleet, name))
        assert outcome.looks[-1].round == 3
        assert outcome.bytes_up > 0
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def _look_of(fleet: KnowledgeGraphFleet, name: str) -> np.ndarray:
    """What a device has after the warm start and one more round."""
    groups = federation._warmed(fleet, TINY, 0, task_of(fleet, TINY, 0))
    (group,) = [g for g in groups if name in {d.name for d in g.devices}]
    with one_thread():
        group.round(2)
    (device,) = [d for d in group.gateways if d.name == name]
    return device.private["own/entities"]


def test_bench_mmfed3_a_run_stops_where_its_cpu_is_spent() -> None:
    outcome = federation.run(small_fleet(), replace(TINY, rounds=9, cpu_s=0.0), 0, quiet)
    assert [look.round for look in outcome.looks] == [2]


def test_bench_mmfed3_downloads_count_rows_as_they_are_stored() -> None:
    state = {"rows/a": {"rows/a/value": np.zeros((100, 8), np.float32)}}
    whole, half = Downloads(), Downloads(codecs={"value": Codec.FLOAT16})
    assert whole.of("a", ["rows/a"], state) - half.of("a", ["rows/a"], state) == pytest.approx(1600, abs=8)
    graph = next(iter(small_fleet(rate=0.0).devices.values()))
    assert whole_bytes(graph, 8) == 32 * len(graph.entity_keys_E16)


def test_bench_mmfed3_an_epoch_is_timed_on_the_products_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v, "BASE", {name: replace(TINY) for name in v.BASE})
    assert speed.epoch_s(small_fleet(), v.FEDE, 8) > 0
