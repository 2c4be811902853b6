"""Entities that are in no fact of a device any more: its rows go, and there is room for others."""

from dataclasses import replace

import numpy as np
import pytest

from models.contract import Update
from models.tensors import flatten
from protocol.errors import Refused
from protocol.tasks.task import Task
from tests.support.methods.graph_cases import random_graph
from tests.support.methods.mmfed3_cases import SPEC, Fleet, fleet_graphs, keyed, task_of


def fleet_of(count: int = 2, **graph: int) -> Fleet:
    task = task_of()
    task = Task.model_validate(task.model_dump() | {"graph": task.graph.model_dump() | graph})
    return Fleet(task, {f"d{i}": made for i, made in enumerate(fleet_graphs(task, count))})


def other_names(task: Task):
    """A graph of as many entities, of which the fleet has seen none."""
    graph = random_graph(seed=8)
    return keyed(replace(graph, entities=tuple(f"new {name}" for name in graph.entities)), task)


def keys_in(fleet: Fleet, device: str) -> set[bytes]:
    return {key.astype(np.uint8).tobytes() for key in fleet.state[f"rows/{device}"][f"rows/{device}/keys"]}


def keys_of(graph) -> set[bytes]:
    return {key.tobytes() for key in graph.entity_keys_E16}


def test_a_device_whose_graph_was_replaced_takes_part_however_tight_the_bound():
    fleet = fleet_of(max_entities=60)
    fleet.step()
    stays = keys_in(fleet, "d1")
    fleet.graphs["d0"] = other_names(fleet.task)
    update, _ = fleet.step()
    assert "keys/gone" in update.tensors
    assert keys_in(fleet, "d0") == keys_of(fleet.graphs["d0"])
    assert keys_in(fleet, "d1") == stays
    update, _ = fleet.step()
    assert not {"keys/gone", "keys/new"} & set(update.tensors), "said once"


def test_a_fact_that_was_taken_out_takes_its_entity_along_and_it_may_come_back():
    fleet = fleet_of(1)
    whole = fleet.graphs["d0"]
    fleet.step()
    lonely = len(whole.entity_keys_E16) - 1
    facts_N3 = whole.triples_N3[(whole.triples_N3[:, [0, 2]] != lonely).all(axis=1)]
    fleet.graphs["d0"] = replace(
        whole,
        entity_keys_E16=whole.entity_keys_E16[:lonely],
        triples_N3=facts_N3,
        features={name: x_EF[:lonely] for name, x_EF in whole.features.items()},
        present_EM=whole.present_EM[:lonely],
    )
    fleet.step()
    assert keys_in(fleet, "d0") == keys_of(fleet.graphs["d0"])
    fleet.graphs["d0"] = whole
    fleet.step()
    assert keys_in(fleet, "d0") == keys_of(whole)


def test_folds_of_those_that_lost_entities_agree_in_any_grouping():
    fleet = fleet_of()
    fleet.step()
    state = fleet.state
    fleet.graphs["d0"] = other_names(fleet.task)
    updates = fleet.step()
    halves = [SPEC.server().open(fleet.task, 2, state) for _ in updates]
    for half, update in zip(halves, updates, strict=True):
        half.fold(update)
    for first, second in ((0, 1), (1, 0)):
        whole = SPEC.server().open(fleet.task, 2, state)
        whole.merge(halves[first])
        whole.merge(halves[second])
        found, wanted = flatten(whole.close()), flatten(fleet.state)
        assert found.keys() == wanted.keys()
        assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (np.ones(40, np.float32), "'keys/gone' has shape"),
        (np.zeros(8, np.float32), "'keys/gone' has no bit set"),
        (np.full(8, 255, np.float32), "'keys/gone' has no bit set, or one beyond its 60"),
    ],
)
def test_what_is_no_bitmap_of_the_bases_entities_is_refused(gone, words):
    fleet = fleet_of(1)
    fleet.step()
    before = fleet.state
    (update,) = fleet.step()
    assert len(before["rows/d0"]["rows/d0/keys"]) == 60
    with pytest.raises(Refused, match=words):
        fleet.server.check(fleet.task, before, Update(update.header, update.tensors | {"keys/gone": gone}))


def test_a_device_without_rows_has_nothing_that_could_be_gone():
    fleet = fleet_of(1)
    state = fleet.state
    (update,) = fleet.step()
    wrong = Update(update.header, update.tensors | {"keys/gone": np.ones(1, np.float32)})
    with pytest.raises(Refused, match="'keys/gone' has shape"):
        fleet.server.check(fleet.task, state, wrong)
