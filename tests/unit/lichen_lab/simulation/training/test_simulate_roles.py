from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from lichen_lab.simulation.data.streams import Fixed, rng_of
from lichen_lab.simulation.training.device import PROTOTYPE, VirtualDevice
from lichen_lab.simulation.training.personal import in_shares_of
from lichen_lab.simulation.training.runner import History, simulate
from models.contract import ClientContext, LocalResult, Tensors, WindowSet
from models.data.window_set import select
from protocol.errors import Misconfigured, Refused, Transient
from tests.support.lab.simulated import task, windows


def fleet() -> dict[str, WindowSet]:
    """Two that train without class 2, and one that has it and only sends prototypes."""
    trainers = {f"d{i}": windows(90, i, classes=(0, 1)) for i in range(2)}
    return {**trainers, "p": windows(60, 9)}


TEACHERS = {"p": PROTOTYPE}


def recall(history: History, label: int) -> float:
    assert history.evaluation is not None
    row = history.evaluation.confusion_KK[label]
    return row[label] / sum(row)


@pytest.fixture(scope="module")
def taught() -> History:
    return simulate(task(), fleet(), windows(150, 50), 3, rounds=6, evaluate_every=6, roles=TEACHERS)


@pytest.mark.long
def test_simulate_a_class_that_only_prototype_devices_hold_is_learned(taught: History) -> None:
    without = {name: held for name, held in fleet().items() if name != "p"}
    before = simulate(task(), without, windows(150, 50), 3, rounds=6, evaluate_every=6)
    assert recall(before, 2) == 0
    assert recall(taught, 2) > 0.6
    assert min(recall(taught, 0), recall(taught, 1)) > 0.6


@pytest.mark.long
def test_simulate_a_prototype_device_sends_nothing_else(taught: History) -> None:
    alone = simulate(task(), {"p": fleet()["p"]}, None, 3, rounds=2, roles=TEACHERS)
    assert set(alone.rounds[0].bytes_up) == {"prototypes/a", "prototypes/b", "frame"}
    name = "head/fc1.weight"
    fresh = simulate(task(), {"p": fleet()["p"]}, None, 3, rounds=1, roles=TEACHERS).state["head"][name]
    assert (alone.state["head"][name] == fresh).all()
    # in the fleet it adds to prototypes, and to nothing that is trained
    trainers = {name: held for name, held in fleet().items() if name != "p"}
    only = simulate(task(), trainers, None, 3, rounds=1).rounds[0].bytes_up
    both = taught.rounds[0].bytes_up
    for part in ("encoder/a", "encoder/b", "head"):
        assert both[part] == only[part]
    assert both["prototypes/a"] > only["prototypes/a"]


@pytest.mark.long
def test_simulate_prototype_devices_in_workers_give_the_same_bytes(taught: History) -> None:
    there = simulate(
        task(), fleet(), windows(150, 50), 3, rounds=6, evaluate_every=6, roles=TEACHERS, workers=2
    )
    assert there.rounds == taught.rounds
    for blob, tensors in taught.state.items():
        for name, values in tensors.items():
            assert (values == there.state[blob][name]).all(), name


@pytest.mark.long
def test_simulate_a_prototype_device_without_a_modality_sends_none_of_it() -> None:
    one = windows(40, 0)
    one.present_BM[:, 1] = False
    history = simulate(task(), {"p": one, "q": windows(40, 1)}, None, 0, rounds=1, roles={"p": PROTOTYPE})
    assert list(history.rounds[0].accepted) == ["p", "q"]
    alone = simulate(task(), {"p": one}, None, 0, rounds=1, roles={"p": PROTOTYPE})
    assert set(alone.rounds[0].bytes_up) == {"prototypes/a", "frame"}


def test_simulate_a_prototype_device_with_nothing_labelled_is_named() -> None:
    bare = windows(20, 2)
    bare.y_B[:] = -1
    history = simulate(task(), {"d": windows(40, 1), "p": bare}, None, 0, rounds=1, roles={"p": PROTOTYPE})
    assert "no labelled windows" in history.rounds[0].refused["p"]
    assert list(history.rounds[0].accepted) == ["d"]


def test_simulate_a_role_for_nobody_is_refused() -> None:
    with pytest.raises(Misconfigured, match="no device 'x'"):
        simulate(task(), fleet(), None, 0, roles={"x": PROTOTYPE})


class Keeper:
    """Keeps a number of its own; cannot train in round 2, sends nonsense in round 3."""

    def train(
        self, context: ClientContext, windows: WindowSet, state: object, private: Tensors
    ) -> LocalResult:
        del windows, state
        if context.round == 2:
            raise Transient("not now")
        before = private.get("own", np.zeros(1, np.float32))
        value = np.array([np.nan if context.round == 3 else 1.0], np.float32)
        return LocalResult({"head/x": value}, private={"own": before + 1})


def test_simulate_what_a_device_keeps_outlives_rounds_without_an_update() -> None:
    device, keeper = VirtualDevice("d", Fixed(windows(10, 0))), Keeper()
    kept: list[Any] = []
    for round_ in range(1, 5):
        with suppress(Transient, Refused):
            device.update(ClientContext(task(), "d", round_, 0), keeper, {}, "0" * 64)  # type: ignore[arg-type]
        kept.append(float(device.private["own"][0]))
    assert kept == [1.0, 1.0, 1.0, 2.0]


@pytest.mark.long
def test_simulate_gives_private_tensors_back_where_asked_also_from_workers() -> None:
    config = {"epochs": 1, "batch": 16, "personal": "head"}
    some = {f"d{i}": windows(40, i) for i in range(3)}
    here = simulate(task(config=config), some, None, 1, rounds=2, keep_private=True)
    there = simulate(task(config=config), some, None, 1, rounds=2, keep_private=True, workers=2)
    assert list(there.private) == list(here.private) == ["d0", "d1", "d2"]
    assert not simulate(task(config=config), some, None, 1, rounds=1).private
    for name, own in here.private.items():
        assert any(tensor.startswith("head/") for tensor in own)
        for tensor, values in own.items():
            assert (there.private[name][tensor] == values).all()


def test_simulate_rounds_asked_for_are_the_tasks_rounds_for_the_method() -> None:
    # with model_every = 3 the model travels in round 3 and in the last one, which is round 4 here
    config = {"epochs": 1, "batch": 16, "model_every": 3}
    history = simulate(task(config=config), {"d": windows(40, 0)}, None, 1, rounds=4)
    assert ["head" in record.bytes_up for record in history.rounds] == [False, False, True, True]


def test_simulate_test_windows_in_a_devices_shares() -> None:
    test, held = windows(300, 1), windows(80, 2)
    some = select(
        held, np.concatenate([np.flatnonzero(held.y_B == 0)[:15], np.flatnonzero(held.y_B == 1)[:5]])
    )
    own = np.bincount(in_shares_of(test, some, rng_of(1)).y_B, minlength=3)
    assert own[2] == 0
    assert abs(own[0] - 3 * own[1]) <= 3
    assert own[0] >= (test.y_B == 0).sum() - 1
    with pytest.raises(Misconfigured, match="no class"):
        in_shares_of(select(test, test.y_B == 2), some, rng_of(1))
