"""QQR's prototypes in NumPy: (13), (14), and the rules that are not in the paper."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from models.contract import ClientContext, WindowSet
from models.methods.qqr import QqrConfig
from models.methods.qqr.prototyper import (
    bounded,
    class_means,
    high_quality,
    local_prototypes,
    make_prototyper,
)
from models.methods.qqr.prototypes import values_name
from models.multimodal import prototypes as in_torch
from models.multimodal.network import build, load_blobs
from models.training.softmax_regression import normalise
from protocol.errors import Transient
from protocol.frames.tensors import Codec
from tests.support.methods import qqr_cases as cases

ACC, GYRO = values_name("acc"), values_name("gyro")


def features(count: int = 12, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(count, 4)).astype(np.float32) for name in ("acc", "gyro")}


def plain(**config) -> QqrConfig:
    return QqrConfig(**({"normalise": False, "prototype_bits": 32} | config))


def summarise(task, windows: WindowSet, given=None):
    given = features(len(windows)) if given is None else given
    return make_prototyper().summarise(ClientContext(task, "d", 1, 0), windows, given, {})


def test_a_prototype_is_the_mean_over_the_windows_of_its_class() -> None:
    z_BD = np.float32([[1, 0], [3, 4], [9, 9], [5, 2]])
    v_KD, count_K = class_means(z_BD, np.array([0, 0, 2, 0]), 4)
    assert count_K.tolist() == [3, 0, 1, 0]
    assert v_KD.tolist() == [[3, 2], [0, 0], [9, 9], [0, 0]]


def test_windows_that_are_missing_noisy_or_unlabelled_make_none() -> None:
    task, windows, given = cases.task(), cases.windows(), features()
    present_BM, quality_BM, y_B = (a.copy() for a in (windows.present_BM, windows.quality_BM, windows.y_B))
    present_BM[0, 0], quality_BM[3, 0], y_B[6] = False, 0.4, -1  # all of class 0
    windows = replace(windows, present_BM=present_BM, quality_BM=quality_BM, y_B=y_B)
    given["acc"][0] = math.nan
    made = local_prototypes(task, plain(), windows, given)
    assert made.message.prototypes["acc"].counts == (1, 4, 4)
    np.testing.assert_allclose(made.tensors[ACC][0], given["acc"][9], rtol=1e-6)
    assert made.message.prototypes["gyro"].counts == (3, 4, 4)  # there, and of good quality
    assert made.metrics["prototypes"] == 6
    assert made.metrics["prototype_windows"] == 9 + 11
    assert made.metrics["left_out"] == 0
    unread = local_prototypes(task, plain(quality="none"), windows, given)
    assert unread.message.prototypes["acc"].counts == (2, 4, 4)


def test_numpy_and_torch_scale_alike() -> None:
    z_BD = features()["acc"]
    z_BD[2] = 0
    want = in_torch.normalise(torch.from_numpy(z_BD), 8.0).numpy()
    np.testing.assert_allclose(normalise(z_BD, 8.0), want, rtol=1e-6)
    assert normalise(z_BD, 8.0).dtype == np.float32
    assert not normalise(z_BD, 8.0)[2].any()


def test_it_is_what_a_device_with_torch_sends() -> None:
    task, windows = cases.task(upload="prototypes", prototype_bits=32), cases.windows(30)
    windows = cases.without(windows, 1, slice(0, 30, 4))
    state = cases.with_prototypes(task)
    net = build(task)
    load_blobs(net, state)
    net.eval()
    with torch.no_grad():
        given = {name: net.encode(name, torch.from_numpy(x)).numpy() for name, x in windows.x.items()}
    mine, theirs = summarise(task, windows, given), cases.train(task, windows, state)
    assert mine.extra == theirs.extra
    assert mine.tensors.keys() == theirs.tensors.keys() == {ACC, GYRO}
    for name, tensor in mine.tensors.items():
        np.testing.assert_allclose(tensor, theirs.tensors[name], rtol=1e-4, atol=1e-5)


def test_a_modality_counts_where_a_labelled_window_has_it_also_one_of_the_first_class() -> None:
    windows = cases.windows()
    present_BM = np.zeros((12, 2), bool)
    present_BM[0, 0] = present_BM[1, 1] = True
    y_B = np.full(12, -1)
    y_B[0] = 0
    windows = replace(windows, present_BM=present_BM, y_B=y_B)
    assert make_prototyper().modalities(cases.task(), windows) == ("acc",)


def test_a_class_needs_so_many_windows() -> None:
    windows = replace(cases.windows(9), y_B=np.array([0, 0, 0, 1, 1, 2, 2, 2, 2]))
    made = local_prototypes(cases.task(), plain(min_count=3), windows, features(9))
    assert made.message.prototypes["acc"].classes == (0, 2)
    assert made.message.prototypes["acc"].counts == (3, 4)
    assert made.metrics["left_out"] == 2 * 2


def test_a_trimmed_prototype_is_not_moved_by_a_few_windows() -> None:
    rng = np.random.default_rng(0)
    z_ND = rng.normal(size=(10, 4)).astype(np.float32)
    bad_ND = z_ND.copy()
    bad_ND[[2, 7]] = 1000
    y_N = np.zeros(10, np.int64)
    (good_D,), _ = class_means(np.delete(z_ND, [2, 7], axis=0), y_N[:8], 1)
    (robust_D,), count_K = class_means(bad_ND, y_N, 1, trim=0.2)
    np.testing.assert_allclose(robust_D, good_D, rtol=1e-6)
    assert count_K.tolist() == [8]
    assert np.abs(class_means(bad_ND, y_N, 1, trim=0.1)[0]).max() > 100  # one of the two is left


@pytest.mark.parametrize(("count", "left"), [(1, 1), (4, 4), (5, 4), (9, 8), (10, 8), (30, 24)])
def test_the_share_that_is_left_out_is_rounded_down(count, left) -> None:
    z_ND = np.random.default_rng(1).normal(size=(count, 3)).astype(np.float32)
    assert class_means(z_ND, np.zeros(count, np.int64), 1, trim=0.2)[1].tolist() == [left]


def test_long_features_are_clipped_before_the_mean() -> None:
    z_BD = np.float32([[30, 40], [0.3, 0.4], [0, 0]])
    np.testing.assert_allclose(bounded(z_BD, plain(prototype_clip=5.0)), [[3, 4], [0.3, 0.4], [0, 0]])
    assert bounded(z_BD, plain()) is z_BD


def test_a_feature_that_is_no_number_is_left_out_and_counted() -> None:
    given = features()
    given["acc"][0, 1], given["acc"][1, 2] = math.nan, math.inf
    made = local_prototypes(cases.task(), QqrConfig(), cases.windows(), given)
    assert made.message.prototypes["acc"].counts == (3, 3, 4)
    assert made.metrics["left_out"] == 2
    assert np.isfinite(made.tensors[ACC]).all()


@pytest.mark.parametrize(
    ("bits", "codec"),
    [(2, Codec.INT2), (3, Codec.INT4), (4, Codec.INT4), (8, Codec.INT8), (32, Codec.FLOAT32)],
)
def test_prototypes_travel_in_the_configured_bits_at_one_length(bits, codec) -> None:
    result = summarise(cases.task(prototype_bits=bits), cases.windows())
    assert set(result.codecs) == set(result.tensors) == {ACC, GYRO}
    assert set(result.codecs.values()) == {codec}
    if bits == 3:
        assert all(len(np.unique(tensor)) <= 8 for tensor in result.tensors.values())
    else:
        lengths_R = np.linalg.norm(result.tensors[ACC], axis=1)
        np.testing.assert_allclose(lengths_R, 8.0, rtol=1e-5)


def test_complete_only_uses_windows_that_have_all() -> None:
    windows = cases.without(cases.windows(), 1, [0, 1, 3])
    result = summarise(cases.task(impute="complete_only"), windows)
    assert result.extra["prototypes"]["acc"]["counts"] == [2, 3, 4]
    assert result.metrics["set_aside"] == 3
    alone = cases.without(cases.windows(), 1, slice(None))
    with pytest.raises(Transient, match="set_aside 12"):
        summarise(cases.task(impute="complete_only"), alone)


def test_only_bad_windows_are_nothing_to_send() -> None:
    windows = replace(cases.windows(), quality_BM=np.zeros((12, 2), np.float32))
    with pytest.raises(Transient, match=r"'d', round 1: no labelled windows that can make prototypes"):
        summarise(cases.task(), windows)


def test_what_leaves_the_device_can_be_changed_before_it_is_scaled_and_sent() -> None:
    def protect(means):
        (v_KD, count_K), (_, others_K) = means["acc"], means["gyro"]
        assert count_K.tolist() == [4, 4, 4]
        far_KD = v_KD + np.float32(100) * np.eye(3, 4, dtype=np.float32)
        return {"acc": (far_KD, count_K), "gyro": (means["gyro"][0], others_K * np.array([1, 0, 1]))}

    made = local_prototypes(cases.task(), QqrConfig(prototype_bits=32), cases.windows(), features(), protect)
    assert made.message.prototypes["gyro"].classes == (0, 2)
    np.testing.assert_allclose(np.linalg.norm(made.tensors[ACC], axis=1), 8.0, rtol=1e-5)
    assert made.tensors[ACC].argmax(axis=1).tolist() == [0, 1, 2]


def test_quality_from_the_threshold_on_is_good() -> None:
    quality = np.float32([[0.49, 0.5, 1.0]])
    assert high_quality(quality, QqrConfig()).tolist() == [[False, True, True]]
    assert high_quality(quality, QqrConfig(quality="none")).all()
