"""What a guided method promises to a coordinator that weighs devices, over every one that there is."""

import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from models.contract import Blobs, Update, blob_of
from models.guided import DeviceWeights
from models.registry import methods
from models.spec import MethodSpec
from models.tensors import flatten
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.labelling import Labelled
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import (
    OPTIONS,
    as_bytes,
    deaf,
    guided,
    labelled_of,
    learnt,
    on_route,
    task_of,
    weighed,
    windows_of,
)

GUIDED = [name for name, spec in methods().items() if spec.guided]
CASES = [(name, options) for name in GUIDED for options in ("defaults", *OPTIONS.get(name, {}))]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request) -> tuple[str, str]:
    """A method, and with which options."""
    return request.param


@pytest.fixture
def spec(case) -> MethodSpec:
    return methods()[case[0]]


@pytest.fixture(scope="module")
def fleet(case) -> tuple[Task, Blobs, list[Update], DeviceWeights]:
    """A task, its initial state, four devices' updates (one has no microphone), and what they weigh."""
    spec = methods()[case[0]]
    task = task_of(spec, case[1])
    state = spec.client().initial(task, seed=3)
    updates = [learnt(spec, task, state, f"d{i}", windows_of(task, seed=i)) for i in range(3)]
    updates.append(learnt(spec, task, on_route(spec, task, state), "d3", deaf(windows_of(task, seed=3))))
    return task, state, updates, weighed(spec, task, state, updates)


def guided_fold(spec, task, state, updates, weighing) -> dict[str, bytes]:
    fold = guided(spec).open_guided(task, 1, state, weighing)
    for update in updates:
        fold.fold(update)
    return as_bytes(fold.close())


def test_the_labelled_windows_must_be_named(spec):
    task = task_of(spec)
    with pytest.raises(Misconfigured, match=r"\[labelled\]"):
        spec.require_labelled(task)
    spec.require_labelled(task.model_copy(update={"labelled": Labelled(file="some.npz")}))


def test_a_view_is_small_and_the_same_bytes_each_time(spec, fleet):
    task, state, updates, _ = fleet
    for update in updates:
        first, again = (spec.trainer().view(task, labelled_of(task), state, update) for _ in range(2))
        assert first.keys() == again.keys()
        assert all(first[name].tobytes() == again[name].tobytes() for name in first)
        assert sum(t.size for t in first.values()) < sum(t.size for t in update.tensors.values()) / 4
        assert all(t.dtype == np.float32 and np.isfinite(t).all() for t in first.values())


def test_a_model_that_gives_no_finite_numbers_is_refused_with_its_part_named(spec, fleet):
    task, state, updates, _ = fleet
    name = next(iter(updates[0].tensors))
    broken = Update(
        updates[0].header, updates[0].tensors | {name: np.full_like(updates[0].tensors[name], np.nan)}
    )
    with pytest.raises(Refused, match=blob_of(name)) as caught:
        spec.trainer().view(task, labelled_of(task), state, broken)
    assert caught.value.reason is Reason.NON_FINITE


def test_the_weights_of_each_part_sum_to_one_over_the_devices_that_sent_it(fleet):
    _, _, updates, weighing = fleet
    sent = {u.header.device: {blob_of(name) for name in u.tensors} for u in updates}
    assert set(weighing.weights) == set.union(*sent.values())
    for part, weights in weighing.weights.items():
        assert set(weights) == {device for device, parts in sent.items() if part in parts}
        assert sum(weights.values()) == pytest.approx(1)
        assert min(weights.values()) >= 0


def test_similarity_is_symmetric_between_minus_one_and_one_with_ones_on_the_diagonal(fleet):
    _, _, _, weighing = fleet
    assert set(weighing.similarity) <= set(weighing.weights)
    assert weighing.similarity
    for part, rows in weighing.similarity.items():
        assert set(rows) == set(weighing.weights[part])
        for one, row in rows.items():
            assert row[one] == pytest.approx(1, abs=1e-6)
            for other, value in row.items():
                assert value == rows[other][one]
                assert abs(value) <= 1


def test_the_weighing_does_not_depend_on_the_order_and_is_json(spec, fleet):
    task, state, updates, weighing = fleet
    text = json.dumps(asdict(weighing), sort_keys=True)
    for order in itertools.islice(itertools.permutations(updates), 0, 24, 5):
        assert json.dumps(asdict(weighed(spec, task, state, list(order))), sort_keys=True) == text


def test_guided_folds_agree_to_the_bit_in_any_order_and_grouping(spec, fleet):
    task, state, updates, weighing = fleet
    expected = guided_fold(spec, task, state, updates, weighing)
    assert expected != as_bytes(state)
    for order in itertools.islice(itertools.permutations(updates), 0, 24, 5):
        assert guided_fold(spec, task, state, order, weighing) == expected
    left, right = (guided(spec).open_guided(task, 1, state, weighing) for _ in range(2))
    for i, update in enumerate(updates):
        (left if i % 2 else right).fold(update)
    left.merge(right)
    assert as_bytes(left.close()) == expected


def test_a_device_that_weighs_all_is_alone_in_the_model_and_one_that_weighs_nothing_is_not_in_it(spec, fleet):
    task, state, updates, weighing = fleet
    parts = {blob_of(name) for name in updates[0].tensors}
    alone = replace(
        weighing,
        weights={
            part: {device: float(device == "d0") for device in weights}
            for part, weights in weighing.weights.items()
        },
    )
    equal = guided_fold(spec, task, state, updates[:1], alone)
    assert guided_fold(spec, task, state, updates, alone) == equal
    before = flatten(state)
    for name, delta in updates[0].tensors.items():
        after = np.frombuffer(equal[name], np.float32).reshape(before[name].shape)
        np.testing.assert_allclose(after, before[name] + delta, atol=1e-4)
    assert all(equal[name] == before[name].tobytes() for name in before if blob_of(name) not in parts)


def test_finishing_gives_the_same_bytes_finite_metrics_and_leaves_its_input_alone(spec, fleet):
    task, state, _, _ = fleet
    before, trainer = as_bytes(state), spec.trainer()
    for round_ in (1, task.rounds.count):
        (first, metrics), (again, _) = (
            trainer.finish(task, round_, 5, labelled_of(task), state) for _ in range(2)
        )
        assert as_bytes(first) == as_bytes(again) != before
        assert as_bytes(first).keys() == before.keys()
        assert metrics
        assert all(np.isfinite(value) for value in metrics.values())
    assert as_bytes(state) == before


def test_finishing_fits_the_labelled_windows_better(spec, fleet):
    task, state, _, _ = fleet
    made, _ = spec.trainer().finish(task, task.rounds.count, 5, labelled_of(task), state)
    loss = [spec.client().evaluate(task, labelled_of(task), s).metrics["loss"] for s in (state, made)]
    assert loss[1] < loss[0]
