"""The coordinator's half: what it takes and refuses, what weights it makes of views, and what the fold is."""

import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from models.contract import Profile, Update, blob_of
from models.guided import DeviceWeights
from models.methods.tactfl.client import make_client
from models.methods.tactfl.server import make_server
from models.tensors import flatten, shapes
from protocol.errors import Reason, Refused
from protocol.tasks.task import Robust
from tests.support.methods.tactfl_cases import task as task_of
from tests.support.tasks import update_header

TASK = task_of()
STATE = make_client().initial(TASK, 0)
ACC, MIC = "encoder/acc", "encoder/mic"


def update_of(device="d0", modalities=("acc", "mic"), size=0.5, **header) -> Update:
    """Every value of these encoders moved by ``size``."""
    blobs = {f"encoder/{name}" for name in modalities}
    tensors = {n: np.full_like(t, size) for n, t in flatten(STATE).items() if blob_of(n) in blobs}
    given = {"samples": 9, "extra": {"windows": dict.fromkeys(modalities, 5)}}
    return Update(update_header(TASK, device, **(given | header)), tensors)


def refused(update: Update, task=TASK) -> Refused:
    with pytest.raises(Refused) as caught:
        make_server().check(task, STATE, update)
    return caught.value


def view(acc=None, mic=None, windows=5.0) -> dict:
    made = {}
    for name, values in (("acc", acc), ("mic", mic)):
        if values is not None:
            made[f"encoder/{name}"] = np.array(values, np.float32)
            made[f"windows/{name}"] = np.array([windows], np.float32)
    return made


def test_a_device_fetches_its_encoders_and_nothing_else():
    server = make_server()
    assert server.route(TASK, Profile(("mic", "acc"))) == (ACC, MIC)
    assert server.route(TASK, Profile(("mic",))) == (MIC,)
    assert server.prototype_route(TASK, ("mic",)) == ()


@pytest.mark.parametrize("modalities", [("acc", "mic"), ("acc",), ("mic",)], ids="+".join)
def test_any_whole_encoders_are_taken(modalities):
    make_server().check(TASK, STATE, update_of(modalities=modalities))


def test_the_head_is_not_the_devices_to_train():
    good = update_of()
    head = {n: np.zeros_like(t) for n, t in STATE["head"].items()}
    error = refused(replace(good, tensors=good.tensors | head))
    assert error.reason is Reason.WRONG_TENSORS
    assert "head/" in error.detail
    assert refused(replace(good, tensors=head)).reason is Reason.WRONG_TENSORS


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"weight": 2}, Reason.OUT_OF_BOUNDS, r"header\.weight is 2"),
        ({"counts": {"nose": (1, 1, 1)}}, Reason.WRONG_MODALITY, "'nose'"),
        ({"extra": {}}, Reason.WRONG_MODALITY, r"extra\.windows counts nothing.*acc, mic"),
        ({"extra": {"windows": {"acc": 5}}}, Reason.WRONG_MODALITY, r"counts acc, the.*acc, mic"),
        (
            {"extra": {"windows": {"acc": 5, "mic": 10}}},
            Reason.OUT_OF_BOUNDS,
            r"extra\.windows\.mic is 10.*9",
        ),
        ({"extra": {"windows": {"acc": 5, "mic": 0}}}, Reason.MALFORMED, r"extra\.windows\.mic"),
        ({"extra": {"windows": 3}}, Reason.MALFORMED, r"extra\.windows"),
    ],
)
def test_a_header_that_cannot_be_is_refused(change, reason, words):
    error = refused(update_of(**change))
    assert error.reason is reason
    with pytest.raises(Refused, match=words):
        raise error


def test_max_delta_bounds_every_value():
    task = task_of(max_delta=0.25)
    make_server().check(task, STATE, update_of(size=-0.25))
    error = refused(update_of(size=0.26), task)
    assert error.reason is Reason.OUT_OF_BOUNDS
    assert "encoder/" in error.detail


def test_each_encoders_devices_are_compared_by_their_own_modality():
    views = {
        "a": view(acc=[1, 0], mic=[1, 0]),
        "b": view(acc=[1, 0]),
        "c": view(acc=[0, 1], mic=[1, 0]),
    }
    made = make_server().weigh(task_of(floor=0.0, sharpness=2.0), views)
    assert set(made.weights) == {ACC, MIC}
    assert made.weights[MIC] == {"a": 0.5, "c": 0.5}
    likely = np.exp([1.0, 1.0, 0.0])  # means to the others: .5, .5, 0; times the sharpness
    np.testing.assert_allclose(list(made.weights[ACC].values()), likely / likely.sum())
    assert made.similarity[ACC]["a"] == {"a": 1, "b": 1, "c": 0}
    assert made.similarity[MIC]["c"] == {"a": 1, "c": 1}
    assert made.warnings == ()
    again = DeviceWeights(**{**json.loads(json.dumps(asdict(made))), "warnings": ()})
    assert again == made


def test_views_are_centred_if_asked_to():
    views = {name: view(acc=[100, at]) for name, at in zip("abc", (-1, 0, 1), strict=True)}
    assert make_server().weigh(task_of(), views).similarity[ACC]["a"]["c"] > 0.999
    assert make_server().weigh(task_of(centre=True), views).similarity[ACC]["a"]["c"] == -1


def test_an_encoder_that_nobody_sent_has_no_weights_and_one_device_has_all():
    made = make_server().weigh(TASK, {"a": view(mic=[0.0, 0.0])})
    assert made.weights == {MIC: {"a": 1.0}}
    assert make_server().weigh(TASK, {}) == DeviceWeights({}, {}, ())


def test_other_weightings_are_equal_or_by_windows_and_show_similarity_all_the_same():
    views = {"a": view(acc=[1, 0], windows=30), "b": view(acc=[-1, 0], windows=10)}
    equal = make_server().weigh(task_of(weighting="equal"), views)
    assert equal.weights == {ACC: {"a": 0.5, "b": 0.5}}
    assert equal.similarity[ACC]["a"]["b"] == -1
    windows = make_server().weigh(task_of(weighting="windows", floor=0.0), views)
    assert windows.weights == {ACC: {"a": 0.75, "b": 0.25}}
    assert make_server().weigh(task_of(weighting="windows", floor=1.0), views).weights == equal.weights


def test_windows_that_a_device_claims_buy_it_no_more_than_four_times_the_usual_weight():
    """It counts them itself: nothing else would bound what a lie brings."""
    task = task_of(weighting="windows", floor=0.0)
    views = {name: view(acc=[1, 0], windows=n) for name, n in zip("abcd", (10, 20, 50, 1e7), strict=True)}
    made = make_server().weigh(task, views)
    assert made.weights == {ACC: {"a": 0.0625, "b": 0.125, "c": 0.3125, "d": 0.5}}
    (warning,) = made.warnings
    assert all(word in warning for word in (ACC, ": d:", "80", "windows"))
    two = make_server().weigh(task, {"a": views["a"], "d": views["d"]})
    assert two.weights == {ACC: {"a": 0.2, "d": 0.8}}
    honest = {name: view(acc=[1, 0], windows=n) for name, n in zip("abc", (5, 10, 25), strict=True)}
    assert make_server().weigh(task, honest).weights == {ACC: {"a": 0.125, "b": 0.25, "c": 0.625}}
    assert not make_server().weigh(task, honest).warnings


def test_a_rule_that_gives_no_weights_falls_back_to_equal_ones_and_says_so():
    views = {"a": view(acc=[1, 0]), "b": view(acc=[-1, 0])}
    for rule in ("literal", "clamp"):
        made = make_server().weigh(task_of(rule=rule), views)
        assert made.weights == {ACC: {"a": 0.5, "b": 0.5}}
        (warning,) = made.warnings
        assert all(word in warning for word in (ACC, f'config.rule = "{rule}"', "equal weights"))


def test_a_modality_that_no_labelled_window_has_cannot_be_compared_and_says_so():
    blind = {"windows/acc": np.array([5], np.float32)}
    made = make_server().weigh(TASK, {"a": blind, "b": blind})
    assert made.weights == {ACC: {"a": 0.5, "b": 0.5}}
    assert made.similarity == {ACC: {}}
    assert [w for w in made.warnings if "no labelled window has 'acc'" in w]


def test_a_view_that_is_not_finite_weighs_nothing_whatever_the_floor():
    views = {"a": view(acc=[1, 0]), "b": view(acc=[np.nan, 0]), "c": view(acc=[1, 0])}
    made = make_server().weigh(task_of(floor=1.0), views)
    assert made.weights[ACC] == {"a": 0.5, "b": 0.0, "c": 0.5}
    assert "b" not in made.similarity[ACC]
    assert [w for w in made.warnings if "b:" in w and "not folded" in w]
    alone = make_server().weigh(TASK, {"b": views["b"]})
    assert alone.weights[ACC] == {"b": 0.0}


def test_views_of_different_length_are_our_fault():
    with pytest.raises(ValueError, match="encoder/acc"):
        make_server().weigh(TASK, {"a": view(acc=[1, 0]), "b": view(acc=[1, 0, 0])})


def test_a_group_that_is_pushed_out_is_named_with_figures_and_the_floor():
    views = {f"phone{i}": view(acc=[1, 0.1 * i]) for i in range(6)}
    views |= {f"ward{i}": view(acc=[-0.3, 1 + 0.1 * i]) for i in range(2)}
    made = make_server().weigh(task_of(floor=0.05), views)
    (warning,) = made.warnings
    for word in (
        ACC,
        "2 devices weigh 0.0",
        "make 0.250",
        "config.floor (now 0.05)",
        "They are ward0, ward1",
    ):
        assert word in warning
    assert make_server().weigh(task_of(weighting="equal"), views).warnings == ()


def test_a_warning_names_twenty_devices_at_most():
    views = {f"p{i:02d}": view(acc=[1, 0.001 * i]) for i in range(80)}
    views |= {f"w{i:02d}": view(acc=[-1, 1 + 0.001 * i]) for i in range(25)}
    (warning,) = make_server().weigh(TASK, views).warnings
    assert "w19 and 5 more" in warning
    assert "w20" not in warning


def test_robust_folds_give_one_vote_each_and_the_weights_on_show_are_those():
    task = TASK.model_copy(update={"robust": Robust(fold="median")})
    views = {"a": view(acc=[1, 0]), "b": view(acc=[1, 0]), "c": view(acc=[-1, 0])}
    made = make_server().weigh(task, views)
    assert set(made.weights[ACC].values()) == {1 / 3}
    assert 'robust.fold = "median"' in made.warnings[0]
    assert make_server().weigh(task_of(weighting="equal"), views).warnings == ()


WEIGHING = DeviceWeights({ACC: {"d0": 0.75, "d1": 0.25, "d2": 0.0}, MIC: {"d0": 0.5, "d2": 0.5}})


def folded(updates, weighing=WEIGHING, task=TASK, state=STATE):
    server = make_server()
    fold = server.open(task, 1, state) if weighing is None else server.open_guided(task, 1, state, weighing)
    for update in updates:
        fold.fold(update)
    return flatten(fold.close())


UPDATES = [update_of("d0", size=0.5), update_of("d1", ("acc",), size=-0.5), update_of("d2", size=0.25)]
MOVED = {"acc": 0.25, "mic": 0.375}
"""By encoder: 0.75 * 0.5 - 0.25 * 0.5; (0.5 + 0.25) / 2."""


def test_each_encoder_moves_by_the_weighted_mean_of_its_devices_and_the_head_stays():
    after, before = folded(UPDATES), flatten(STATE)
    assert shapes(after) == shapes(before)
    for name, tensor in after.items():
        by = MOVED.get(name.split("/")[1], 0.0)
        np.testing.assert_allclose(tensor, before[name] + by, atol=1e-6)
        if by == 0:
            assert tensor.tobytes() == before[name].tobytes()


def test_without_a_weighing_all_weigh_the_same():
    after, before = folded(UPDATES, None), flatten(STATE)
    name = "encoder/acc/fc.bias"
    np.testing.assert_allclose(after[name] - before[name], 0.25 / 3, atol=1e-6)


def test_a_guided_fold_agrees_to_the_bit_in_any_order_and_grouping():
    expected = {n: t.tobytes() for n, t in folded(UPDATES).items()}
    for order in itertools.permutations(UPDATES):
        assert {n: t.tobytes() for n, t in folded(order).items()} == expected
    left, right = (make_server().open_guided(TASK, 1, STATE, WEIGHING) for _ in range(2))
    left.fold(UPDATES[2])
    for update in UPDATES[:2]:
        right.fold(update)
    left.merge(right)
    assert {n: t.tobytes() for n, t in flatten(left.close()).items()} == expected


def test_a_round_in_which_nobody_weighs_anything_changes_nothing():
    nothing = DeviceWeights({ACC: {"d0": 0.0}, MIC: {"d0": 0.0}})
    after = folded([UPDATES[0]], nothing)
    assert {n: t.tobytes() for n, t in after.items()} == {n: t.tobytes() for n, t in flatten(STATE).items()}


def test_a_weight_however_small_counts():
    weighing = DeviceWeights({ACC: {"d0": 1 - 1e-12, "d1": 1e-12}})
    one = folded([update_of("d0", ("acc",))], weighing)["encoder/acc/fc.bias"]
    both = folded([update_of("d0", ("acc",)), UPDATES[1]], weighing)["encoder/acc/fc.bias"]
    assert 0 < np.abs(one - both).max() < 1e-5


def test_who_was_not_looked_at_is_not_folded():
    for weighing in (DeviceWeights({}), DeviceWeights({ACC: {"d1": 1.0}})):
        with pytest.raises(ValueError, match=r"'d0' has no weight for 'encoder/acc'"):
            folded([UPDATES[0]], weighing)


def test_under_a_robust_fold_a_device_without_weight_has_no_vote():
    task = TASK.model_copy(update={"robust": Robust(fold="median")})
    third = DeviceWeights({ACC: {"d0": 0.5, "d1": 0.5, "d2": 0.0}, MIC: {"d0": 1.0, "d2": 0.0}})
    moved = folded(UPDATES, third, task)["encoder/acc/fc.bias"] - STATE[ACC]["encoder/acc/fc.bias"]
    np.testing.assert_allclose(moved, 0.0, atol=1e-6)  # of 0.5 and -0.5, and not of 0.25 too
