"""A task that grew begins from the weights of an earlier version, by the names of classes and modalities."""

import numpy as np
import pytest

from models.registry import method
from models.tensors import flatten
from models.training.growth import grown
from protocol.tasks.network import Network
from protocol.tasks.task import Modality, Target, Task, Window

WINDOWS = ("qqr", "tactfl", "disentafl")


Names = tuple[str, ...]


def task(name: str, labels: Names = ("a", "b"), modalities: Names = ("acc", "gyro"), **more):
    return Task(
        name="t",
        method=name,
        labels=labels,
        modalities=tuple(Modality(name=one, channels=3, rate_hz=20) for one in modalities),
        window=Window(length_s=1),
        network=Network(feature_dim=8, hidden_dim=8),
        **more,
    )


def initial(one: Task, seed: int = 0):
    return method(one.method).client().initial(one, seed)


@pytest.mark.parametrize("name", WINDOWS)
def test_the_same_task_takes_everything(name: str):
    one = task(name)
    earlier = initial(one, 5)
    found = grown(method(name), one, initial(one), one, earlier)
    assert (found.partly, found.fresh) == ({}, ())
    for tensor, value in flatten(earlier).items():
        np.testing.assert_array_equal(flatten(found.state)[tensor], value)


@pytest.mark.parametrize("name", WINDOWS)
def test_classes_are_copied_by_name_and_new_ones_are_fresh(name: str):
    old, new = task(name), task(name, ("b", "c", "a"))
    earlier, fresh = initial(old, 5), initial(new)
    found = grown(method(name), new, fresh, old, earlier)
    assert found.fresh == ()
    before, began, made = flatten(earlier), flatten(fresh), flatten(found.state)
    assert found.partly
    for tensor, words in found.partly.items():
        assert words == "new of class c"
        np.testing.assert_array_equal(made[tensor][0], before[tensor][1])
        np.testing.assert_array_equal(made[tensor][1], began[tensor][1])
        np.testing.assert_array_equal(made[tensor][2], before[tensor][0])
    assert {*made} == {*began}
    assert all(made[tensor].shape == began[tensor].shape for tensor in made)


@pytest.mark.parametrize("name", ["qqr", "tactfl"])
def test_a_modality_more_keeps_what_the_head_knows_of_the_others(name: str):
    old, new = task(name), task(name, modalities=("mag", "gyro", "acc"))
    earlier, fresh = initial(old, 5), initial(new)
    found = grown(method(name), new, fresh, old, earlier)
    before, began, made = (flatten(one)["head/fc1.weight"] for one in (earlier, fresh, found.state))
    np.testing.assert_array_equal(made[:, :8], began[:, :8])
    np.testing.assert_array_equal(made[:, 8:16], before[:, 8:])
    np.testing.assert_array_equal(made[:, 16:], before[:, :8])
    assert found.partly["head/fc1.weight"] == "new of modality mag"
    assert all("mag" in tensor for tensor in found.fresh)
    assert "new: encoder/mag/" in found.words


@pytest.mark.parametrize("name", WINDOWS)
def test_another_network_takes_what_fits(name: str):
    old = task(name)
    new = old.model_copy(update={"network": Network(feature_dim=16, hidden_dim=8), "config": {}})
    if name == "disentafl":
        new = new.model_copy(update={"config": {"hidden": 32}})
    found = grown(method(name), new, initial(new), old, initial(old, 5))
    assert found.fresh
    assert found.taken
    for tensor, value in flatten(initial(new)).items():
        assert flatten(found.state)[tensor].shape == value.shape


def test_a_target_more_is_new_and_the_rest_is_taken():
    old = task("disentafl")
    new = task("disentafl", targets=(Target(name="speed", kind="regression"),))
    found = grown(method("disentafl"), new, initial(new), old, initial(old, 5))
    assert found.fresh
    assert all("speed" in tensor for tensor in found.fresh)
