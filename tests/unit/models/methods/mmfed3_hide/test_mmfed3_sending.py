"""What of a device's rows travels, and what waits."""

import numpy as np
import pytest
import torch

from models.knowledge_graph.data.embedding_tables import ENTITIES
from models.methods.mmfed3_hide.device_state import CARRY
from models.methods.mmfed3_hide.local_training import LocalTraining
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task
from tests.support.methods.mmfed3_cases import SPEC, Fleet, context, fleet_graphs, task_of

CLIENT = SPEC.client()


def structure(count=1, **options) -> Fleet:
    """What a device holds is then what it predicts with."""
    task = task_of(fusion="structure", dual=False, **options)
    graphs = fleet_graphs(task, count)
    return Fleet(task, {f"d{i}": graph for i, graph in enumerate(graphs)})


def test_what_travels_and_what_waits_are_together_what_was_learned():
    """Base plus carry is what the device holds, round after round, however little travels."""
    fleet = structure(count=1, codec="int2", rows_share=0.3)
    for round_ in range(5):
        fleet.step()
        sent = fleet.results["d0"]
        graph, state = fleet.graphs["d0"], fleet.state["rows/d0"]
        order = np.lexsort(graph.entity_keys_E16.T[::-1])
        np.testing.assert_array_equal(state["rows/d0/keys"], graph.entity_keys_E16[order])
        held_ED = sent.private[ENTITIES][order, 0]
        carry_ED = sent.private[CARRY][order]
        np.testing.assert_allclose(state["rows/d0/value"] + carry_ED, held_ED, atol=1e-3 * (round_ + 1))
        assert len(sent.tensors["rows/delta"]) == -(-3 * len(order) // 10)
        assert np.abs(carry_ED).max() > 0.01


def test_without_error_carry_nothing_waits():
    fleet = structure(count=1)
    task = Task.model_validate(fleet.task.model_dump() | {"uplink": {"codec": "int2", "error_carry": False}})
    result = CLIENT.train(context(task), fleet.graphs["d0"], fleet.state, {})
    assert not result.private[CARRY].any()


def test_rows_that_wait_do_so_without_error_carry_too():
    fleet = structure(count=1, rows_share=0.5)
    task = Task.model_validate(fleet.task.model_dump() | {"uplink": {"codec": "int2", "error_carry": False}})
    graph = fleet.graphs["d0"]
    result = CLIENT.train(context(task), graph, fleet.state, {})
    carry_ED, keys_E16 = result.private[CARRY], graph.entity_keys_E16
    order = np.lexsort(keys_E16.T[::-1])
    flags = np.unpackbits(result.tensors["keys/sent"].astype(np.uint8), bitorder="little")[: len(order)]
    assert not carry_ED[order][flags == 1].any()
    assert carry_ED[order][flags == 0].any(axis=1).all()


def test_what_was_learned_of_an_entity_before_the_fleets_row_came_is_no_change_of_that_row():
    """A device that joins late sends half of its rows; the others' change would else be put on rows that the
    fleet has had for long."""
    fleet = structure(count=2, codec="int4", rows_share=0.5)
    for _ in range(2):
        fleet.step(["d0"])
    assert fleet.private["d0"][CARRY].any()
    fleet.step()
    assert not fleet.private["d1"][CARRY].any()
    fleet.step()
    assert fleet.private["d1"][CARRY].any()  # these are changes of the fleet's rows


def test_the_largest_changes_travel():
    whole, part = structure(count=1, codec="float32"), structure(count=1, codec="float32", rows_share=0.25)
    for fleet in (whole, part):
        fleet.step()
    length = np.linalg.norm(whole.results["d0"].tensors["rows/delta"], axis=1)
    sent = np.linalg.norm(part.results["d0"].tensors["rows/delta"], axis=1)
    np.testing.assert_array_equal(np.sort(sent), np.sort(length)[-len(sent) :])


def test_a_last_step_that_went_astray_is_refused_too(monkeypatch):
    fleet, run = structure(count=1), LocalTraining.run

    def astray(self, *args):
        yield from run(self, *args)
        self.fleet.structure.value_ED[0, 0] = torch.inf

    monkeypatch.setattr(LocalTraining, "run", astray)
    with pytest.raises(Refused, match=r"diverged: an embedding is not finite") as refused:
        CLIENT.train(context(fleet.task), fleet.graphs["d0"], fleet.state, {})
    assert refused.value.reason is Reason.NON_FINITE
