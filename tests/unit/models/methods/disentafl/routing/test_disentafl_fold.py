"""The coordinator's fold: each knowledge type over the devices that hold it, and features by row."""

from itertools import permutations

import numpy as np
import pytest

from models.methods.disentafl.routing import mean_features
from models.methods.disentafl.routing.blob_names import route
from models.methods.disentafl.server import make_server
from models.tensors import flatten
from protocol.tasks.folding import Robust
from tests.support.methods.disentafl_cases import ACC, ALL, GYRO, state_of, task_of, update_of


def fold(task, state, updates):
    opened = make_server().open(task, 1, state)
    for update in updates:
        make_server().check(task, state, update)
        opened.fold(update)
    return opened.close()


def test_each_knowledge_type_is_the_mean_over_the_devices_that_hold_it():
    task = task_of()
    state = state_of(task)
    one = update_of(task, state, ACC, seed=1, domain=1)
    two = update_of(task, state, GYRO, seed=2)
    three = update_of(task, state, ALL, seed=3, domain=1)
    base, new = flatten(state), flatten(fold(task, state, [one, two, three]))
    for name, holders in {
        "base/acc/fc.weight": (one, three),
        "gate/acc/out.bias": (one, three),
        "domain/acc.1/fc.weight": (one, three),
        "domain/gyro.0/fc.weight": (two,),
        "domain/gyro.1/fc.weight": (three,),
        "expert/_shared._shared/fc.weight": (one, two, three),
        "expert/acc.label/fc.weight": (one, three),
        "expert/gyro.pose/fc.weight": (two, three),
        "decoder/picture/fc.weight": (three,),
        "last/label/fc.bias": (one, three),
    }.items():
        mean = np.mean([u.tensors[name] for u in holders], axis=0)
        assert new[name] == pytest.approx(base[name] + mean, abs=1e-6), name


def test_blobs_that_nobody_trained_stay_the_same_to_the_bit():
    task = task_of()
    state = state_of(task)
    state["decoder/pose"]["decoder/pose/fc.bias"][0] = -0.0  # + 0.0 would lose the sign
    new = fold(task, state, [update_of(task, state, ACC, domain=2)])
    moved = {
        blob for blob in state if any(new[blob][n].tobytes() != t.tobytes() for n, t in state[blob].items())
    }
    assert new.keys() == state.keys()
    assert moved == set(route(task, ACC, (2,)))
    private = task_of(last_layer="private")
    new = fold(private, state, [update_of(private, state, ALL)])
    assert all(new[b] == state[b] for b in state if b.startswith("last/"))


@pytest.mark.parametrize("config", [{}, {"aggregate": "kd"}], ids=["avg", "kd"])
@pytest.mark.parametrize("robust", [Robust(), Robust(fold="median", prototypes="geometric_median")])
def test_order_and_grouping_change_no_bit(config, robust):
    task = task_of(**config).model_copy(update={"robust": robust})
    state = state_of(task)
    updates = [update_of(task, state, p, seed=i, domain=i % 3) for i, p in enumerate((ACC, GYRO, ALL, ALL))]
    expected = {n: t.tobytes() for n, t in flatten(fold(task, state, updates)).items()}
    for order in list(permutations(updates))[::7]:
        assert {n: t.tobytes() for n, t in flatten(fold(task, state, order)).items()} == expected
    left, right = (make_server().open(task, 1, state) for _ in range(2))
    for i, update in enumerate(updates):
        (left if i in {1, 2} else right).fold(update)
    left.merge(right)
    assert {n: t.tobytes() for n, t in flatten(left.close()).items()} == expected
    before = {n: t.tobytes() for n, t in flatten(state).items()}
    assert {n: t.tobytes() for n, t in flatten(fold(task, state, [])).items()} == before != expected


def test_with_kd_only_gates_and_rows_of_features_move_and_rows_count_their_own_rounds():
    task = task_of(aggregate="kd")
    state = state_of(task)
    updates = [update_of(task, state, ACC, seed=1), update_of(task, state, GYRO, seed=2)]
    new = fold(task, state, updates)
    for blob in state:
        if blob.split("/")[0] not in {"gate", "features"}:
            assert all(new[blob][n].tobytes() == t.tobytes() for n, t in state[blob].items())
    name = "features/_shared._shared"
    rows = [u.header.extra["rows"][name] for u in updates]
    assert rows == [[0, 1, 2], [3, 4, 5]]
    assert new[name][f"{name}/rounds"].tolist() == [1, 1, 1, 1, 1, 1, 0]
    expected = np.concatenate([u.tensors[f"{name}/values"] for u in updates])
    assert new[name][f"{name}/values"][:6] == pytest.approx(expected, abs=1e-6)
    third = update_of(task, new, ACC, seed=3)
    after = fold(task, new, [third])
    mean = (expected[:3] + third.tensors[f"{name}/values"]) / 2
    assert after[name][f"{name}/values"][:3] == pytest.approx(mean, abs=1e-6)
    assert after[name][f"{name}/values"][3:].tobytes() == new[name][f"{name}/values"][3:].tobytes()
    assert after[name][f"{name}/rounds"].tolist() == [2, 2, 2, 1, 1, 1, 0]


def test_rows_of_tables():
    task = task_of(aggregate="kd")
    assert list(mean_features.rows_of(task, "label")) == [0, 1, 2]
    assert list(mean_features.rows_of(task, "speed")) == [0]
    assert [list(mean_features.rows_of(task, o, within="_shared")) for o in task.target_names] == [
        [0, 1, 2],
        [3, 4],
        [5],
        [6],
    ]
    assert list(mean_features.rows_of(task, "_shared")) == list(range(7))
    for within in (None, "_shared"):
        with pytest.raises(KeyError, match="taste"):
            mean_features.rows_of(task, "taste", within=within)
    assert mean_features.fresh(task_of()) == {}
    fresh = mean_features.fresh(task)
    assert set(fresh) == {b for b in route(task, ALL) if b.startswith("features/")}
    assert fresh["features/gyro._shared"]["features/gyro._shared/values"].shape == (7, 4)
