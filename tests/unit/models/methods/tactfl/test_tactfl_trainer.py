"""What the coordinator's worker does in a round: it looks at each update, and finishes the version."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.contract import ClientContext, Update, blob_of
from models.data.window_set import select
from models.methods.tactfl.client import make_client
from models.methods.tactfl.messages import TactflMessage
from models.methods.tactfl.server import make_server
from models.methods.tactfl.trainer import make_trainer
from models.tensors import apply, flatten, unflatten
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.headers import UpdateHeader
from protocol.tasks.network import Encoder
from protocol.tasks.rounds import Rounds
from tests.support.methods.tactfl_cases import task as task_of
from tests.support.methods.tactfl_cases import windows as windows_of
from tests.support.methods.tactfl_cases import without

TASK = task_of(encoder=Encoder(width=8, depth=2))
STATE = make_client().initial(TASK, 0)
LABELLED = windows_of(TASK, 48, labelled=True)
MIXED = without(without(LABELLED, 1, slice(None, 12)), 0, slice(12, 20))
"""Some windows without microphone, some without accelerometer."""


def as_bytes(state):
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}


def changed(before, after):
    mine, theirs = as_bytes(before), as_bytes(after)
    assert mine.keys() == theirs.keys()
    return {blob_of(name) for name in mine if mine[name] != theirs[name]}


def update_of(seed=1, modalities=("acc", "mic"), size=0.05) -> Update:
    rng = np.random.default_rng(seed)
    blobs = {f"encoder/{name}" for name in modalities}
    tensors = {
        n: rng.normal(0, size, t.shape).astype(np.float32)
        for n, t in flatten(STATE).items()
        if blob_of(n) in blobs
    }
    extra = TactflMessage(windows=dict.fromkeys(modalities, 7)).extra()
    return Update(UpdateHeader.model_construct(device="d", extra=extra), tensors)


def test_a_view_is_the_mean_feature_of_the_labelled_windows_through_the_devices_own_encoder():
    update = update_of()
    view = make_trainer().view(TASK, MIXED, STATE, update)
    assert view.keys() == {"encoder/acc", "encoder/mic", "windows/acc", "windows/mic"}
    assert view["windows/acc"].tolist() == [7]
    state = STATE | unflatten(apply(flatten(STATE), update.tensors))
    model = make_client().inference_model(TASK, state)
    x = tuple(torch.from_numpy(MIXED.x[name]) for name in TASK.modality_names)
    with torch.no_grad():
        z = model.features(torch.from_numpy(MIXED.present_BM), x)
    for m, name in enumerate(TASK.modality_names):
        here_B = MIXED.present_BM[:, m]
        np.testing.assert_allclose(view[f"encoder/{name}"], z[m][here_B].numpy().mean(axis=0), atol=1e-5)


def test_a_view_by_classes_is_their_mean_features_after_each_other():
    task = task_of(encoder=Encoder(width=8, depth=2), summary="classes")
    whole = make_trainer().view(task, MIXED, STATE, update_of())["encoder/mic"].reshape(3, 4)
    for k in range(3):
        own = select(MIXED, MIXED.y_B == k)
        np.testing.assert_allclose(
            whole[k], make_trainer().view(TASK, own, STATE, update_of())["encoder/mic"], atol=1e-5
        )


def test_a_device_shows_the_encoders_it_sent_alone_and_what_no_labelled_window_has_is_not_seen():
    view = make_trainer().view(TASK, LABELLED, STATE, update_of(modalities=("mic",)))
    assert view.keys() == {"encoder/mic", "windows/mic"}
    silent = make_trainer().view(TASK, without(LABELLED, 1), STATE, update_of())
    assert silent.keys() == {"encoder/acc", "windows/acc", "windows/mic"}


def test_views_are_the_same_bytes_again_and_do_not_depend_on_windows_without_label():
    def bytes_of(labelled):
        view = make_trainer().view(TASK, labelled, STATE, update_of())
        return {name: tensor.tobytes() for name, tensor in view.items()}

    expected = bytes_of(select(MIXED, np.arange(30)))
    unknown = replace(MIXED, y_B=np.where(np.arange(48) < 30, MIXED.y_B, -1))
    torch.manual_seed(1234)
    assert bytes_of(unknown) == expected


def test_a_model_that_gives_no_finite_numbers_is_refused_and_named():
    update = update_of(modalities=("mic",))
    huge = {name: np.full_like(t, 3e38) for name, t in update.tensors.items()}
    with pytest.raises(Refused, match="encoder/mic") as caught:
        make_trainer().view(TASK, LABELLED, STATE, replace(update, tensors=huge))
    assert caught.value.reason is Reason.NON_FINITE


def test_labelled_windows_that_give_no_finite_numbers_are_not_blamed_on_a_device():
    absurd = replace(LABELLED, x={**LABELLED.x, "mic": LABELLED.x["mic"] * np.float32(1e38)})
    with pytest.raises(Misconfigured, match=r"labelled\.file.*'mic'.*beyond sense"):
        make_trainer().view(TASK, absurd, STATE, update_of())


def finished(round_, **config):
    task = task_of(encoder=Encoder(width=8, depth=2), head_epochs=2, **config)
    task = task.model_copy(update={"rounds": Rounds(count=4)})
    after, metrics = make_trainer().finish(task, round_, 3, MIXED, STATE)
    return changed(STATE, after), metrics


def test_the_head_is_trained_when_it_is_needed_and_everything_at_the_end():
    always = {"labelled_accuracy", "labelled_macro_f1", "labelled_loss", "labelled_windows"}
    expected = {1: set(), 2: {"head"}, 3: set(), 4: {"head"}}
    for round_, blobs in expected.items():
        moved, metrics = finished(round_, head_every=2)
        assert moved == blobs
        assert set(metrics) == always | ({"head_loss"} if blobs else set())
    assert finished(4, head_every=3)[0] == {"head"}  # the last round, whatever divides it
    assert finished(3, finetune_epochs=2)[0] == {"head"}
    moved, metrics = finished(4, finetune_epochs=2)
    assert moved == {"head", "encoder/acc", "encoder/mic"}
    assert set(metrics) == always | {"head_loss", "finetune_loss"}
    assert all(type(value) is float and np.isfinite(value) for value in metrics.values())


def test_a_round_is_finished_the_same_way_again_and_otherwise_in_another_round():
    def made(round_, seed):
        state, _ = make_trainer().finish(TASK, round_, seed, MIXED, STATE)
        return as_bytes(state)

    torch.manual_seed(99)
    assert made(1, 3) == made(1, 3)
    assert made(1, 3) != made(2, 3)
    assert made(1, 3) != made(1, 4)


def test_blobs_of_other_parts_come_back_as_they_are():
    other = {"optimizer/first": {"optimizer/first/x": np.ones(3, np.float32)}}
    task = TASK.model_copy(update={"rounds": Rounds(count=1), "config": {"finetune_epochs": 1}})
    after, _ = make_trainer().finish(task, 1, 0, MIXED, STATE | other)
    assert after["optimizer/first"] is other["optimizer/first"]


def test_a_device_that_learns_from_noise_weighs_least():
    task = task_of(encoder=Encoder(width=8, depth=2), epochs=8, lr=0.02, sharpness=20.0)
    views = {}
    for i in range(4):
        windows = windows_of(task, 96, seed=20 + i)
        if i == 2:
            rng = np.random.default_rng(0)
            noise = {n: rng.normal(0, 3, x.shape).astype(np.float32) for n, x in windows.x.items()}
            windows = replace(windows, x=noise)
        sent = make_client().train(ClientContext(task, f"d{i}", 1, 0), windows, STATE, {})
        header = UpdateHeader.model_construct(device=f"d{i}", extra=sent.extra)
        views[f"d{i}"] = make_trainer().view(task, LABELLED, STATE, Update(header, sent.tensors))
    made = make_server().weigh(task, views)
    for shares in made.weights.values():
        assert min(shares, key=shares.__getitem__) == "d2"
        assert shares["d2"] < 0.7 / 4
