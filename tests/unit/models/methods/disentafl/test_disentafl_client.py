"""A device's half of DisentAFL: where it begins, what it trains, and on what."""

from dataclasses import replace

import numpy as np
import pytest

from lichen_lab.simulation.data.sets import vehicle
from models.contract import ClientContext, Profile
from models.data import window_set
from models.methods.disentafl.client import make_client
from models.methods.disentafl.network.inference import predictions
from models.methods.disentafl.routing.blob_names import route
from models.tensors import apply, flatten, unflatten
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Task, Window
from tests.support.methods.disentafl_cases import ACC, ALL
from tests.support.methods.disentafl_learning import learnable, on, small, taken, train, whole


def test_a_blob_begins_the_same_whatever_else_the_task_has():
    task = small()
    fewer = task.model_copy(update={"targets": task.targets[:1], "modalities": task.modalities[:2]})
    more, less = whole(task), whole(fewer)
    assert set(less) < set(more)
    assert all(
        tensor.tobytes() == more[blob][name].tobytes()
        for blob, tensors in less.items()
        # all targets' rows follow each other there
        for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("aggregate", ["avg", "kd"])
@pytest.mark.parametrize("families", [["mode", "mote", "mome"], ["mome"], []], ids="+".join)
def test_every_blob_of_the_supernet_is_there_from_the_beginning(aggregate, families):
    task = small(aggregate=aggregate, families=families)
    state = whole(task)
    assert set(route(task, ALL)) == set(state)
    assert all(state.values())


def test_the_same_seed_windows_and_state_give_the_same_bytes_and_others_do_not():
    task = small()
    state, windows = on(task, whole(task), ALL), learnable(task)
    first, again = (train(task, windows, state) for _ in range(2))
    assert first.extra == again.extra
    assert first.metrics == again.metrics
    for here, there in ((first.tensors, again.tensors), (first.private, again.private)):
        assert {n: t.tobytes() for n, t in here.items()} == {n: t.tobytes() for n, t in there.items()}
    for about in ({"device": "d1"}, {"round_": 2}):
        other = train(task, windows, state, **about)
        name = "last/label/fc.weight"
        assert other.tensors[name].tobytes() != first.tensors[name].tobytes()


@pytest.mark.parametrize("families", [["mode", "mote", "mome"], []], ids="+".join)
def test_a_device_learns_all_kinds_of_targets(families):
    task = small(epochs=30, families=families)
    state = on(task, whole(task), ALL)
    result = train(task, learnable(task), state)
    base = flatten(state)
    after = unflatten(apply(base, result.tensors))
    test = learnable(task, seed=9, count=90)
    before, found = (make_client().evaluate(task, test, s).metrics for s in (state, after))
    assert found["accuracy"] > 0.9
    assert found["pose/accuracy"] > 0.9
    assert found["speed/r2"] > 0.7
    assert found["picture/r2"] > 0.7
    assert before["speed/r2"] < 0.3


def test_the_loss_is_that_of_the_targets_and_falls():
    task = small(align=0.0, orthogonal=0.0)
    windows, state = learnable(task), whole(task)
    seen = []
    for round_ in range(1, 6):
        held = on(task, state, ALL)
        result = train(task, windows, held, round_=round_)
        seen.append(result.metrics["loss"])
        state = taken(task, state, result)
    assert seen[-1] < 0.8 * seen[0]
    assert result.metrics["align"] == result.metrics["orthogonal"] == 0


def test_the_auxiliary_losses_push_where_they_should():
    def after(**config):
        task = small(epochs=10, latent=16, **config)
        return train(task, learnable(task), on(task, whole(task), ALL)).metrics

    weak = after(align=0.001, orthogonal=0.001)
    assert after(align=10.0, orthogonal=0.001)["align"] < weak["align"] / 2
    assert after(align=0.001, orthogonal=10.0)["orthogonal"] < weak["orthogonal"] / 2


def test_what_a_device_has_no_data_for_is_not_in_its_update():
    task = small()
    windows = learnable(task)
    present_BM = windows.present_BM.copy()
    present_BM[:, task.modality_names.index("gyro")] = False
    windows = replace(windows, present_BM=present_BM, targets={"speed": windows.targets["speed"]})
    state = whole(task)
    result = train(task, windows, on(task, state, ALL))
    assert result.extra["modalities"] == ["acc"]
    assert result.extra["targets"] == ["label", "speed", "picture"]
    own = route(task, Profile(("acc",), ("label", "speed", "picture")), (0,))
    assert {name.rpartition("/")[0] for name in result.tensors} == set(own)
    taken(task, state, result)


def test_the_profile_says_what_is_learned_not_only_the_data():
    task = small()
    state = on(task, whole(task), ALL)
    for profile, expected in ((ACC, ACC), (None, Profile(("acc", "gyro"))), (ALL, ALL)):
        extra = train(task, learnable(task), state, profile=profile).extra
        assert Profile(tuple(extra["modalities"]), tuple(extra["targets"])) == expected


def test_a_route_that_holds_less_than_the_profile_is_trained_as_far_as_it_goes():
    task = small()
    extra = train(task, learnable(task), on(task, whole(task), ACC), profile=ALL).extra
    assert (extra["modalities"], extra["targets"]) == (["acc"], ["label"])


@pytest.mark.parametrize("missing", ["label", "input"])
def test_windows_that_can_teach_nothing_are_counted_and_said(missing):
    task = small()
    windows = learnable(task)
    if missing == "label":
        windows = replace(windows, y_B=np.full(len(windows), -1))
    else:
        windows = replace(windows, present_BM=np.zeros_like(windows.present_BM))
    with pytest.raises(Transient, match=r"'d0', round 1: no labelled windows that can train .*windows 0"):
        train(task, windows, on(task, whole(task), ACC), profile=ACC)


def test_a_generation_needs_no_labels_and_a_window_without_its_modality_does_not_count():
    task = small()
    profile = Profile(("acc",), ("picture",))
    windows = replace(learnable(task), y_B=np.full(48, -1), targets={})
    windows.present_BM[10:, task.modality_names.index("cam")] = False
    result = train(task, windows, on(task, whole(task), profile), profile=profile)
    assert result.metrics["windows"] == 10
    assert result.metrics["unlabelled"] == 38
    assert np.isfinite(result.metrics["loss"])
    assert 0 < result.metrics["accuracy"] <= 1


def test_what_an_unlabelled_or_absent_number_holds_does_not_matter():
    task = small()
    state, windows = on(task, whole(task), ALL), learnable(task)
    windows.present_BM[::2, task.modality_names.index("gyro")] = False
    windows.targets["speed"][::3] = np.nan
    other = replace(windows, x={name: x.copy() for name, x in windows.x.items()})
    other.x["gyro"][::2] = 1e6
    first, second = (train(task, w, state) for w in (windows, other))
    for name, tensor in first.tensors.items():
        assert np.isfinite(tensor).all()
        if not name.startswith("gate/"):
            assert tensor.tobytes() == second.tensors[name].tobytes(), name


@pytest.mark.data
def test_the_loss_falls_on_real_data():
    try:
        split = vehicle.load()
    except Misconfigured as error:
        pytest.skip(str(error))
    task = Task(
        name="vehicle",
        method="disentafl",
        labels=vehicle.LABELS,
        modalities=vehicle.MODALITIES,
        window=Window(length_s=vehicle.WINDOW_S, stride_s=vehicle.WINDOW_S),
        config={"batch": 32, "width": 32},
    )
    few = window_set.select(split.windows, np.random.default_rng(0).permutation(len(split.windows))[:160])
    found = []
    for epochs in (1, 12):
        longer = task.model_copy(update={"config": task.config | {"epochs": epochs}})
        context = ClientContext(longer, "node", 1, seed=1)
        found.append(make_client().train(context, few, whole(longer), {}).metrics)
    assert found[1]["loss"] < 0.8 * found[0]["loss"]
    assert all(np.isfinite(value) for value in found[1].values())


def test_adams_moments_stay_on_the_device_and_go_on_where_they_were():
    task = small(domains=1)
    state, windows = on(task, whole(task), ALL), learnable(task)
    first = train(task, windows, state)
    own = {name: t for name, t in first.private.items() if name.startswith("moments/")}
    assert "moments/base/acc" in own
    assert not [name for name in first.tensors if name.startswith("moments/")]
    assert all(tensor[0] == first.metrics["steps"] for tensor in own.values())
    again = train(task, windows, state, private=first.private, round_=2)
    assert all(again.private[name][0] == 2 * tensor[0] for name, tensor in own.items())
    anew = train(task, windows, state, private={}, round_=2)
    name = "base/acc/embed.weight"
    assert again.tensors[name].tobytes() != anew.tensors[name].tobytes()
    # what is damaged or of another size is not used
    broken = {"moments/base/acc": own["moments/base/acc"][:-1]}
    assert (
        train(task, windows, state, private=broken, round_=2).tensors[name].tobytes()
        == anew.tensors[name].tobytes()
    )
    off = small(domains=1, keep_moments=False)
    assert not [n for n in train(off, windows, state).private if n.startswith("moments/")]


def test_without_a_validation_share_all_windows_train_and_judge_the_domain_as_it_came():
    task = small(validation=0.0, epochs=3)
    state, windows = on(task, whole(task), ALL), learnable(task)
    result = train(task, windows, state)
    assert result.metrics["judges"] == 0
    before = predictions(make_client().inference_model(task, state), task, windows)
    hits = np.mean(
        [
            (before["logits"].argmax(axis=1) == windows.y_B).mean(),
            (before["pose/logits"].argmax(axis=1) == windows.targets["pose"]).mean(),
        ]
    )
    assert result.extra["accuracy"] == pytest.approx(hits)
    assert len(result.private["gate_memory/pairs"]) == 1
