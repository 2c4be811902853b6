"""A TACTFL device: what it trains on, what it sends, and what its model does without a modality."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from export.bundle_builder import Lineage, make_bundle
from export.parity.gate import session
from models.contract import Tensors, WindowSet
from models.data import window_set
from models.methods.tactfl import METHOD
from models.methods.tactfl.batch import Streams
from models.methods.tactfl.client import make_client
from models.methods.tactfl.local_training import LocalTraining
from models.methods.tactfl.messages import TactflMessage
from models.multimodal.inference import probabilities
from models.multimodal.network import build
from models.tensors import apply, flatten, unflatten
from models.training import local
from protocol.bundle import unpack
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.tasks.network import Encoder
from tests.support.methods.tactfl_cases import task, train, windows, with_context, without

LINEAGE = Lineage(3, 3, "0" * 64, None, {})


def blobs(tensors: Tensors) -> set[str]:
    return set(unflatten(tensors))


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(one[n].tobytes() == other[n].tobytes() for n in one)


def test_encoders_travel_and_the_head_stays():
    result = train(task(), windows(task()))
    assert blobs(result.tensors) == {"encoder/acc", "encoder/mic"}
    assert result.weight == 1
    assert TactflMessage.read(result.extra) == TactflMessage(windows={"acc": 12, "mic": 12})
    assert all(np.abs(delta).max() > 0 for name, delta in result.tensors.items() if "weight" in name)


def test_labels_change_nothing():
    t = task()
    unknown = train(t, windows(t))
    assert same(unknown.tensors, train(t, windows(t, labelled=True)).tensors)


def test_a_device_with_one_modality_trains_that_encoder_alone():
    t = task()
    given = without(windows(t), 1)
    result = train(t, given)
    assert blobs(result.tensors) == {"encoder/acc"}
    assert TactflMessage.read(result.extra).windows == {"acc": 12}
    assert result.metrics["alone"] == 12
    state = {name: blob for name, blob in make_client().initial(t, 0).items() if name != "encoder/mic"}
    # what it has no encoder for counts as missing, whatever its windows say
    assert same(train(t, windows(t), state).tensors, result.tensors)


def test_a_window_is_counted_once_for_each_encoder_that_it_trains():
    t = task()
    given = without(without(windows(t), 1, slice(0, 3)), 0, slice(3, 5))
    result = train(t, given)
    assert TactflMessage.read(result.extra).windows == {"acc": 10, "mic": 9}
    assert (result.metrics["windows"], result.metrics["alone"]) == (12, 5)
    three = t.model_copy(
        update={"modalities": (*t.modalities, t.modalities[0].model_copy(update={"name": "gyr"}))}
    )
    assert TactflMessage.read(train(three, windows(three)).extra).windows == {"acc": 12, "gyr": 12, "mic": 12}


def test_windows_that_have_nothing_are_set_aside_and_a_lone_stray_trains_nothing():
    t = task()
    given = without(without(windows(t), 1, [0, 1, 2, 3, 4]), 0, [0, 1, 2, 3])
    result = train(t, given)
    assert result.metrics["set_aside"] == 4
    # the window that has acc alone has no other to be told apart from
    assert TactflMessage.read(result.extra).windows == {"acc": 7, "mic": 7}


@pytest.mark.parametrize("count", [0, 1])
def test_without_two_windows_there_is_nothing_to_tell_apart(count):
    t = task()
    with pytest.raises(Transient, match=rf"'d', round 1: no windows that can train.*windows {count}"):
        train(t, window_set.select(windows(t), np.arange(count)))


def test_a_lone_modality_whose_segments_never_overlap_says_so_and_pairs_of_two_do_train():
    t = task(segments="ends", segment_share=0.5)
    with pytest.raises(Transient, match="segments that overlap"):
        train(t, without(windows(t), 0))
    assert train(t, windows(t)).tensors
    literal = task(segments="ends", segment_share=0.5, self_pairs="literal")
    assert train(literal, without(windows(t), 0)).tensors


@pytest.mark.parametrize(
    "option",
    [
        {"segments": "ends"},
        {"segment_share": 0.5},
        {"temperature": 1.0},
        {"rotate_deg": 30.0},
        {"gain": 0.2},
        {"jitter": 0.1},
        {"self_weight": 1.0},
        {"optimizer": "sgd"},
        {"lr": 0.01},
        {"weight_decay": 0.1},
        {"batch": 4},
        {"epochs": 2},
        {"remeasure_norms": False},
    ],
    ids=lambda option: next(iter(option)),
)
def test_every_option_of_the_device_changes_what_is_learnt_and_stays_repeatable(option):
    plain = task()
    t = plain.model_copy(
        update={
            "config": option,
            "modalities": tuple(m.model_copy(update={"channels": 3}) for m in plain.modalities),
        }
    )
    assert not same(
        train(t, windows(t)).tensors, train(t.model_copy(update={"config": {}}), windows(t)).tensors
    )
    assert same(train(t, windows(t)).tensors, train(t, windows(t)).tensors)


def test_adams_moments_stay_on_the_device_and_are_gone_on_with():
    t, off = task(), task(keep_moments=False)
    first = train(t, windows(t))
    assert set(first.private) == {"moments/encoder/acc", "moments/encoder/mic"}
    assert all(flat[0] == first.metrics["steps"] for flat in first.private.values())
    on, anew = (train(t, windows(t), round_=2, private=kept) for kept in (first.private, {}))
    assert not same(on.tensors, anew.tensors)
    assert all(flat[0] == 2 * first.metrics["steps"] for flat in on.private.values())
    assert not train(off, windows(t)).private
    assert same(train(off, windows(t), round_=2, private=first.private).tensors, anew.tensors)
    assert not train(task(optimizer="sgd"), windows(t)).private


def test_an_encoder_that_comes_back_finds_its_own_moments():
    t = task()
    first = train(t, windows(t))
    fewer = train(t, without(windows(t), 1), private=first.private, round_=2)
    name = "moments/encoder/mic"
    assert fewer.private[name].tobytes() == first.private[name].tobytes()


def test_self_pairs_only_matter_where_a_modality_is_alone():
    skip, literal = task(), task(self_pairs="literal")
    assert same(train(skip, windows(skip)).tensors, train(literal, windows(skip)).tensors)
    alone = without(windows(skip), 0)
    assert not same(train(skip, alone).tensors, train(literal, alone).tensors)


def test_a_modality_that_is_alone_is_paired_with_itself_whatever_the_weight():
    t = task()
    alone = without(windows(t), 0)
    assert same(train(t, alone).tensors, train(task(self_weight=3.0), alone).tensors)


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_the_loss_that_is_told_is_the_one_that_is_descended(monkeypatch, weight):
    descended, t = [], task(self_weight=weight)
    descend = local.Adam.descend

    def watched(adam, loss):
        descended.append(float(loss.detach()))
        descend(adam, loss)

    monkeypatch.setattr(local.Adam, "descend", watched)
    mixed = without(windows(t), 0, slice(0, 5))
    assert [train(t, mixed).metrics["loss"]] == pytest.approx(descended)


def test_segments_come_from_the_context_where_there_is_one_unless_told_not_to():
    t, off = task(context_s=2.0), task(context_s=2.0, use_context=False)
    plain = windows(t)
    given = with_context(t, plain)
    result = train(t, given)
    assert result.metrics["context"] == 12
    assert not same(result.tensors, train(t, plain).tensors)
    assert not same(result.tensors, train(t, with_context(t, plain, seed=2)).tensors)
    assert same(train(off, given).tensors, train(off, plain).tensors)
    # no stream before any window: the windows are all there is
    assert given.context is not None
    points_BM = np.minimum(given.context.points_BM, [t.samples(name) for name in t.modality_names])
    cut = replace(given, context=replace(given.context, points_BM=points_BM))
    assert same(train(t, cut).tensors, train(t, plain).tensors)


def test_what_lies_before_a_gap_is_never_read():
    t = task(context_s=3.0)
    given = with_context(t, windows(t))
    assert given.context is not None
    points_BM = np.full((12, 2), [24, 48])
    noisy = {}
    for m, name in enumerate(t.modality_names):
        noisy[name] = given.context.x[name].copy()
        noisy[name][:, :, : -points_BM[0, m]] = np.nan
    gap = replace(given, context=replace(given.context, points_BM=points_BM))
    broken = replace(given, context=replace(given.context, points_BM=points_BM, x=noisy))
    assert same(train(t, gap).tensors, train(t, broken).tensors)


def test_remeasured_statistics_are_those_of_whole_windows():
    t = task(encoder=Encoder(kind="lstm", width=4, depth=1))
    given = windows(t)
    state = flatten(make_client().initial(t, 0))
    name = "encoder/acc/norm_in.running_mean"
    after = apply(state, train(t, given).tensors)[name]
    np.testing.assert_allclose(after, given.x["acc"].mean(axis=(0, 2)) / 2.0, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["cnn1d", "lstm"])
@pytest.mark.parametrize("share", [0.125, 1.0])
def test_the_shortest_and_the_longest_segments_train_every_encoder(kind, share):
    t = task(encoder=Encoder(kind=kind, width=4, depth=4), segment_share=share)
    result = train(t, windows(t))
    assert all(np.isfinite(delta).all() for delta in result.tensors.values())
    assert blobs(result.tensors) == {"encoder/acc", "encoder/mic"}


def _learning(given: WindowSet, **config) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of the first epoch, and of one after many."""
    t = task(batch=32, lr=0.01, epochs=1, **config)
    t = t.model_copy(update={"network": t.network.model_copy(update={"feature_dim": 16})})
    config_model = METHOD.config.model_validate(t.config)
    torch.manual_seed(1)
    trainer = LocalTraining(t, build(t), config_model, torch.Generator().manual_seed(2), {})  # type: ignore[arg-type]
    streams = Streams.of(t, given, t.modality_names, use_context=True)
    metrics = [trainer.run(streams, 1) for _ in range(30)]
    return metrics[0], metrics[-1]


def test_modalities_learn_to_recognise_each_others_segments():
    first, last = _learning(windows(task(), 64))
    assert last["loss"] < 0.8 * first["loss"]
    assert last["matched"] > 2 * first["matched"]


def test_a_lone_modality_learns_to_recognise_its_own_segments():
    first, last = _learning(without(windows(task(), 64), 1))
    assert last["loss"] < 0.8 * first["loss"]
    assert last["matched"] > first["matched"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"segment_share": 0.1}, r"config\.segment_share"),
        ({"segment_share": 1.1}, r"config\.segment_share"),
        ({"temperature": 0}, r"config\.temperature"),
        ({"segments": "start"}, r"config\.segments"),
        ({"floor": 1.5}, r"config\.floor"),
        ({"contrast": False}, r"config\.contrast"),
    ],
)
def test_wrong_options_are_named(config, words):
    with pytest.raises(Misconfigured, match=words):
        METHOD.configure(task(**config))


@pytest.mark.parametrize("extra", [{"windows": {"acc": 0}}, {"windows": 3}, {"windows": {"a/b": 1}}])
def test_a_message_of_the_wrong_form_is_refused_with_its_field(extra):
    with pytest.raises(Refused, match=r"extra\.windows") as caught:
        TactflMessage.read(extra)
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("normalise", [True, False])
def test_a_missing_modality_is_a_feature_of_zeros_whatever_lies_there(normalise):
    t = task(normalise=normalise)
    client = make_client()
    model = client.inference_model(t, client.initial(t, 0))
    given = without(windows(t), 1, slice(0, 6))
    broken = replace(
        given, x=given.x | {"mic": np.where(given.present_BM[:, 1, None, None], given.x["mic"], np.nan)}
    )
    found = probabilities(model, broken)
    np.testing.assert_array_equal(found, probabilities(model, given))
    with torch.no_grad():
        z_BD = model.net.encode("acc", torch.from_numpy(given.x["acc"]))
        z_BD = 8.0 * torch.nn.functional.normalize(z_BD, dim=1) if normalise else z_BD
        logits_BK = model.net.classify({"acc": z_BD, "mic": torch.zeros_like(z_BD)})
    np.testing.assert_allclose(found[:6], torch.softmax(logits_BK, dim=1)[:6], rtol=1e-4)
    assert not np.allclose(found[6:], torch.softmax(logits_BK, dim=1)[6:], rtol=1e-2)


@pytest.mark.long
def test_the_model_passes_the_export_gate_and_predicts_without_a_modality():
    t = task()
    both = {"acc": Encoder(width=4, depth=2), "mic": Encoder(kind="lstm", width=4, depth=2)}
    t = t.model_copy(update={"network": t.network.model_copy(update={"encoders": both})})
    client, given = make_client(), windows(t, 6)
    state = client.initial(t, 0)
    state |= unflatten(apply(flatten(state), train(t, given, state).tensors))
    data, parity = make_bundle(t, state, LINEAGE)
    assert parity.replaced == 0
    _, files = unpack(data)
    lacking = without(given, 0, slice(0, 3))
    feed = {"present": lacking.present_BM.astype(np.float32)} | lacking.x
    (found,) = session(files["model.onnx"]).run(["probabilities"], feed)
    np.testing.assert_allclose(found, probabilities(client.inference_model(t, state), lacking), atol=1e-5)
