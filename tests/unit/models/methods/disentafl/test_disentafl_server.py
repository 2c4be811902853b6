"""The coordinator's half: what it takes, what it refuses and with which words, and its routes."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.aggregation.fold import update_norms
from models.contract import Profile, Update
from models.methods.disentafl.messages import DisentMessage
from models.methods.disentafl.routing.blob_names import route
from models.methods.disentafl.routing.domain_gate import MAX_STEP
from models.methods.disentafl.server import make_server
from models.tensors import flatten
from protocol.errors import Reason, Refused
from tests.support.methods.disentafl_cases import (
    ACC,
    ALL,
    GYRO,
    header_of,
    message_of,
    state_of,
    task_of,
    update_of,
)

PROFILES = {"acc": ACC, "gyro": GYRO, "all": ALL}


def refused(task, state, update) -> Refused:
    with pytest.raises(Refused) as caught:
        make_server().check(task, state, update)
    assert caught.value.detail
    return caught.value


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"aggregate": "kd"},
        {"last_layer": "private"},
        {"last_layer": "shared"},
        {"domains": 1},
        {"families": []},
        {"families": ["mome"]},
        {"families": [], "aggregate": "kd"},
    ],
    ids=str,
)
def test_an_update_of_exactly_its_route_is_taken_and_any_tensor_more_or_less_is_not(profile, config):
    task = task_of(**config)
    state = state_of(task)
    good = update_of(task, state, profile)
    make_server().check(task, state, good)
    for name in good.tensors:
        error = refused(
            task, state, replace(good, tensors={n: t for n, t in good.tensors.items() if n != name})
        )
        assert error.reason is Reason.WRONG_TENSORS
        assert repr(name) in error.detail
    foreign = set(flatten(state)) - set(good.tensors)
    foreign |= {"x", "base/nose/fc.weight", "gate_memory/pairs", "base/acc/extra", "features/acc.pose/rounds"}
    for name in foreign - set(good.tensors):
        error = refused(task, state, replace(good, tensors=good.tensors | {name: np.zeros(3, np.float32)}))
        assert error.reason is Reason.WRONG_TENSORS
        assert repr(name) in error.detail


def test_what_travels_by_option():
    def sent(**config):
        task = task_of(**config)
        return {name.split("/")[0] for name in update_of(task, state_of(task), ACC).tensors}

    assert sent() == {"gate", "base", "domain", "expert", "decoder", "last"}
    assert sent(last_layer="shared") == sent(last_layer="both") == sent()
    assert sent(last_layer="private") == sent() - {"last"}
    assert sent(aggregate="kd") == {"gate", "features"}
    assert sent(families=["mote"]) == sent() - {"gate", "domain"}


@pytest.mark.parametrize("config", [{}, {"aggregate": "kd"}], ids=["avg", "kd"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.nan, Reason.NON_FINITE),
        (np.inf, Reason.NON_FINITE),
        (-np.inf, Reason.NON_FINITE),
        (-1e30, Reason.OUT_OF_BOUNDS),
        (1025, Reason.OUT_OF_BOUNDS),
    ],
)
def test_values_that_cannot_be_are_refused_in_every_tensor(config, value, reason):
    task = task_of(**config)
    state = state_of(task)
    good = update_of(task, state, ALL)
    for name, tensor in good.tensors.items():
        bad = tensor.copy()
        bad.flat[-1] = value
        error = refused(task, state, replace(good, tensors=good.tensors | {name: bad}))
        assert error.reason is reason
        assert repr(name) in error.detail


def test_shapes_are_compared_in_every_tensor_and_deltas_with_max_delta():
    for config in ({}, {"aggregate": "kd"}):
        task = task_of(**config)
        state = state_of(task)
        good = update_of(task, state, GYRO)
        for name, tensor in good.tensors.items():
            for shaped in (tensor[..., None], tensor[:0], tensor.reshape(-1)[:1], np.float32(0.0)):
                error = refused(task, state, replace(good, tensors=good.tensors | {name: np.asarray(shaped)}))
                assert error.reason is Reason.WRONG_TENSORS
                assert repr(name) in error.detail
    task = task_of(max_delta=0.25)
    state = state_of(task)
    good = update_of(task, state, ACC)
    for size, taken in ((0.25, True), (0.26, False)):
        tensors = {name: np.full_like(t, -size) for name, t in good.tensors.items()}
        if taken:
            make_server().check(task, state, replace(good, tensors=tensors))
        else:
            assert refused(task, state, replace(good, tensors=tensors)).reason is Reason.OUT_OF_BOUNDS


WRONG = {
    "no message": ({}, Reason.MALFORMED, "extra.modalities"),
    "no input": ({"modalities": []}, Reason.MALFORMED, "extra.modalities"),
    "no target": ({"targets": []}, Reason.MALFORMED, "extra.targets"),
    "modalities of another kind": ({"modalities": "acc"}, Reason.MALFORMED, "extra.modalities"),
    "too many": ({"modalities": ["acc"] * 17}, Reason.MALFORMED, "extra.modalities"),
    "unknown modality": ({"modalities": ["acc", "nose"]}, Reason.WRONG_MODALITY, "'nose'"),
    "no input modality": ({"modalities": ["acc", "cam"]}, Reason.WRONG_MODALITY, "'cam'"),
    "shared as a modality": ({"modalities": ["_shared"]}, Reason.MALFORMED, "extra.modalities"),
    "twice": ({"modalities": ["acc", "acc"]}, Reason.MALFORMED, "extra.modalities"),
    "out of order": ({"modalities": ["gyro", "acc"]}, Reason.MALFORMED, "extra.modalities"),
    "unknown target": ({"targets": ["label", "taste"]}, Reason.WRONG_TENSORS, "'taste'"),
    "targets out of order": ({"targets": ["pose", "label"]}, Reason.MALFORMED, "extra.targets"),
    "a modality as a target": ({"targets": ["acc"]}, Reason.WRONG_TENSORS, "'acc'"),
    "no such domain": ({"domain": 3}, Reason.OUT_OF_BOUNDS, "extra.domain"),
    "below all domains": ({"domain": -1}, Reason.MALFORMED, "extra.domain"),
    "half a domain": ({"domain": 0.5}, Reason.MALFORMED, "extra.domain"),
    "a domain of text": ({"domain": "one"}, Reason.MALFORMED, "extra.domain"),
    "a huge domain": ({"domain": 10**40}, Reason.MALFORMED, "extra.domain"),
    "no domain": ({"domain": None}, Reason.MALFORMED, "extra.domain"),
    "no such best": ({"best": 3}, Reason.OUT_OF_BOUNDS, "extra.best"),
    "better than all": ({"accuracy": 1.5}, Reason.MALFORMED, "extra.accuracy"),
    "not a number": ({"accuracy": float("nan")}, Reason.MALFORMED, "extra.accuracy"),
    "rows of another kind": ({"rows": [1]}, Reason.MALFORMED, "extra.rows"),
    "rows without kd": ({"rows": {"features/acc.label": [0]}}, Reason.WRONG_TENSORS, "features/acc.label"),
    "another domain than the tensors": ({"domain": 1}, Reason.WRONG_TENSORS, "'domain/acc.1/"),
    "another profile than the tensors": ({"targets": ["pose"]}, Reason.WRONG_TENSORS, "'decoder/pose/"),
    "more inputs than the tensors": ({"modalities": ["acc", "gyro"]}, Reason.WRONG_TENSORS, "gyro"),
}


@pytest.mark.parametrize(("change", "reason", "named"), WRONG.values(), ids=WRONG)
def test_a_message_that_cannot_be_is_refused_with_its_field_named(change, reason, named):
    task = task_of()
    state = state_of(task)
    good = update_of(task, state, ACC)
    extra = message_of(ACC, **change) if change else {}
    error = refused(task, state, Update(header_of(task, extra), good.tensors))
    assert error.reason is reason
    assert named in error.detail


WRONG_ROWS = {
    "none": ({}, "extra.rows"),
    "no list": ({"features/acc.label": 0}, "features/acc.label"),
    "an empty list": ({"features/acc.label": []}, "features/acc.label"),
    "twice": ({"features/acc.label": [1, 1]}, "features/acc.label"),
    "falling": ({"features/acc.label": [1, 0]}, "features/acc.label"),
    "below zero": ({"features/acc.label": [-1]}, "features/acc.label"),
    "no such row": ({"features/acc.label": [3]}, "features/acc.label"),
    "another's modality": ({"features/gyro.label": [0]}, "features/gyro.label"),
    "another's target": ({"features/acc.pose": [0]}, "features/acc.pose"),
    "another's rows of what is shared": ({"features/acc._shared": [0, 3]}, "features/acc._shared"),
    "another's rows of all that is shared": ({"features/_shared._shared": [6]}, "features/_shared._shared"),
    "no blob of features": ({"base/acc": [0]}, "extra.rows"),
    "a path": ({"features/../acc.label": [0]}, "extra.rows"),
    "too many": ({f"features/a{i}.b": [0] for i in range(300)}, "extra.rows"),
}


@pytest.mark.parametrize(("rows", "named"), WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_rows_that_are_not_the_devices_own_are_refused(rows, named):
    task = task_of(aggregate="kd")
    state = state_of(task)
    good = update_of(task, state, ACC)
    deltas = {n: t for n, t in good.tensors.items() if not n.startswith("features/")}
    counts = {blob: len(index) if isinstance(index, list) else 1 for blob, index in rows.items()}
    values = {f"{blob}/values": np.zeros((count, 4), np.float32) for blob, count in counts.items()}
    error = refused(task, state, Update(header_of(task, message_of(ACC, rows=rows)), deltas | values))
    assert named in error.detail


def test_rows_and_tensor_must_agree_in_number_and_each_must_have_the_other():
    task = task_of(aggregate="kd")
    state = state_of(task)
    good = update_of(task, state, ACC)
    values = good.tensors["features/acc.label/values"]
    for tensors in (
        good.tensors | {"features/acc.label/values": values[:-1]},
        good.tensors | {"features/acc.label/values": values[:, :-1]},
        {n: t for n, t in good.tensors.items() if n != "features/acc.label/values"},
    ):
        assert "'features/acc.label/values'" in refused(task, state, Update(good.header, tensors)).detail


def test_where_there_is_one_domain_no_other_is_taken():
    for config in ({"domains": 1}, {"families": ["mote"]}):
        task = task_of(**config)
        state = state_of(task)
        good = update_of(task, state, ACC)
        for field in ("domain", "best"):
            header = header_of(task, message_of(ACC, **{field: 1}))
            assert f"extra.{field}" in refused(task, state, Update(header, good.tensors)).detail


def test_weights_counts_and_nothing_at_all_are_refused():
    task = task_of()
    state = state_of(task)
    good = update_of(task, state, ACC)
    for change, named in (
        ({"weight": 2}, "header.weight"),
        ({"samples": 3}, "header.counts.acc"),
        ({"counts": {"acc": (1, 2)}}, "header.counts.acc"),
        ({"counts": {"nose": (1, 2, 3)}}, "'nose'"),
    ):
        header = header_of(task, good.header.extra, **change)
        assert named in refused(task, state, Update(header, good.tensors)).detail
    assert refused(task, state, Update(good.header, {})).reason is Reason.WRONG_TENSORS


def test_the_serving_route_is_the_route_through_the_domain_that_the_gate_prefers():
    server = make_server()
    for config in ({}, {"aggregate": "kd"}, {"families": ["mode"]}):
        task = task_of(**config)
        for extra, domain in ((None, 0), (message_of(ACC, best=2, domain=1), 2)):
            serving = server.serving_route(task, ACC, extra)
            assert set(serving) == {
                n for n in route(task, ACC, (domain,)) if n.split("/")[0] not in {"gate", "features"}
            }
            assert serving == tuple(sorted(serving))
            assert set(serving) <= set(server.route(task, ACC))
    # of another profile, from before a sensor was plugged in: the domain still stands
    assert "domain/gyro.2" in server.serving_route(task_of(), ALL, message_of(ACC, best=2))
    told = server.serving_message(message_of(ACC, best=2, domain=1))
    assert told == {"best": 2}, "what a secure round tells of it is enough"
    assert server.serving_route(task_of(), ACC, told) == server.serving_route(
        task_of(), ACC, message_of(ACC, best=2)
    )
    for extra in ({"domain": 1}, {}, message_of(ACC, best=3), message_of(ACC, best=-1)):
        with pytest.raises(Refused, match="extra"):
            server.serving_route(task_of(), ACC, extra)


def test_a_route_knows_nothing_that_the_task_does_not():
    server, task = make_server(), task_of()
    odd = Profile(("gyro", "nose", "cam"), ("taste", "speed", "pose"))
    assert server.route(task, odd) == server.route(task, GYRO)
    assert server.prototype_route(task, ("acc",)) == ()


def test_a_message_comes_back_as_it_was_sent():
    message = DisentMessage(
        modalities=("acc",), targets=("label",), domain=1, best=2, rows={"features/_shared.label": (0, 2)}
    )
    assert DisentMessage.read(message.extra()) == message
    assert message.profile == ACC
    assert DisentMessage.read(message.extra() | {"of a later release": 1}) == message


def test_a_gate_moves_by_little_and_so_is_not_compared_with_those_of_other_devices():
    task = task_of()
    state = state_of(task)
    good = update_of(task, state, ACC)
    gates = {name: tensor for name, tensor in good.tensors.items() if name.startswith("gate/")}
    for size, taken in ((2 * MAX_STEP, True), (2 * MAX_STEP + 0.01, False)):
        update = replace(good, tensors=good.tensors | {n: np.full_like(t, size) for n, t in gates.items()})
        if taken:
            make_server().check(task, state, update)
            assert not [part for part in update_norms(update) if part.startswith("gate")]
            assert "base/acc" in update_norms(update)
        else:
            assert refused(task, state, update).reason is Reason.OUT_OF_BOUNDS
