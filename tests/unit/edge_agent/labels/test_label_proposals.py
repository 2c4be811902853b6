"""Active learning as a pure function: what is asked first, and what is never asked."""

import numpy as np
import pytest

from edge_agent.labels import proposals
from edge_agent.labels.proposals import (
    choose,
    features,
    is_good,
    margins,
    model_features,
    reason,
    signal_features,
    typicality,
)

NOTHING = np.zeros((0, 3))


def p(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32)


def asked(p_BK: np.ndarray | None, count: int, labelled: np.ndarray = NOTHING) -> list[int]:
    return [one.index for one in choose(p_BK, model_features(p_BK), labelled, count)]


def test_the_smallest_margin_is_asked_first_where_all_are_as_far() -> None:
    p_BK = p((0.9, 0.05, 0.05), (0.5, 0.45, 0.05), (0.7, 0.2, 0.1))
    far = np.full((1, 3), 100.0)
    assert asked(p_BK, 3, far)[0] == 1
    np.testing.assert_allclose(margins(p_BK), [0.85, 0.05, 0.5], atol=1e-6)


def test_a_batch_does_not_ask_the_same_twice() -> None:
    """Ten copies of the most doubtful window, and one other: both are asked for."""
    p_BK = p(*[(0.5, 0.5, 0.0)] * 10, (0.0, 0.55, 0.45))
    first, second = asked(p_BK, 2)
    assert {first < 10, second < 10} == {True, False}


def test_a_window_near_a_labelled_one_is_worth_less() -> None:
    p_BK = p((0.5, 0.5, 0.0), (0.0, 0.5, 0.5))
    assert asked(p_BK, 1, model_features(p_BK[:1])) == [1]
    assert asked(p_BK, 1, model_features(p_BK[1:])) == [0]


def test_each_window_once_and_no_more_than_there_are() -> None:
    p_BK = p(*[(1.0, 0.0, 0.0)] * 4)
    assert sorted(asked(p_BK, 20)) == [0, 1, 2, 3], "also where all are equal"
    assert asked(p_BK[:0], 5) == []
    assert len(asked(p_BK, 2)) == 2


def test_without_a_model_the_windows_spread_over_the_signal() -> None:
    rng = np.random.default_rng(0)
    quiet, loud = rng.normal(0, 0.1, (20, 3, 50)), rng.normal(0, 5.0, (2, 3, 50))
    x = {"acc": np.concatenate([quiet, loud]).astype(np.float32)}
    signal_BF = signal_features(x, np.ones((22, 1), np.bool_))
    found = choose(None, signal_BF, signal_BF[:1], 2)
    assert found[0].index >= 20, "unlike the labelled window"
    assert found[0].margin is None
    assert "no model predicts yet" in reason(found[0], None, ("a",))


def test_a_missing_modality_has_the_features_of_the_mean() -> None:
    rng = np.random.default_rng(0)
    x = {"acc": rng.normal(size=(4, 2, 30)).astype(np.float32), "gyr": np.zeros((4, 1, 30), np.float32)}
    present = np.array([[True, False]] * 4)
    signal_BF = signal_features(x, present)
    assert np.isfinite(signal_BF).all()
    assert signal_BF.shape[0] == 4
    present[0] = False
    assert (signal_features(x, present)[0] == 0).all()


@pytest.mark.parametrize("x", [np.zeros((3, 1, 1), np.float32), np.full((3, 2, 4), 7, np.float32)])
def test_a_constant_signal_gives_finite_features(x: np.ndarray) -> None:
    signal_BF = signal_features({"m": x}, np.ones((3, 1), np.bool_))
    assert np.isfinite(signal_BF).all()
    assert len(choose(None, signal_BF, signal_BF[:0], 3)) == 3


def test_a_window_of_bad_quality_or_without_any_modality_is_not_proposed() -> None:
    quality = np.array([[1, 1], [0.4, 1], [1, 0.1], [1, 1]], np.float32)
    present = np.array([[True, True], [True, True], [True, False], [False, False]])
    assert is_good(quality, present, 0.5).tolist() == [True, False, True, False]


def test_the_reason_names_classes_and_what_is_unlike() -> None:
    labels = ("walk", "run", "sit")
    doubtful = np.array([0.48, 0.45, 0.07], np.float32)
    sure = np.array([0.97, 0.02, 0.01], np.float32)
    near, far = proposals.Proposal(0, 0.03, 0.1, 0.4), proposals.Proposal(0, 0.95, 1.0, 0.4)
    assert reason(near, doubtful, labels) == "the model hesitates between walk (48%) and run (45%)"
    assert reason(far, sure, labels).startswith("the model says walk (97%), but it is unlike")
    many, left = proposals.Proposal(0, 0.95, 0.5, 0.7), proposals.Proposal(0, None, 0.5, 0.2)
    assert (
        reason(many, sure, labels)
        == "the model says walk (97%), but many windows without a label are like it"
    )
    assert reason(left, None, labels).startswith("no model predicts yet, and of the windows that are left")


def test_a_task_of_one_class_has_no_margin_and_still_a_reason() -> None:
    one = choose(np.ones((2, 1), np.float32), np.ones((2, 1)), np.zeros((0, 1)), 1)[0]
    assert one.margin == 1
    assert "walk" in reason(one, np.ones(1, np.float32), ("walk",))


def test_an_accident_is_not_asked_for_before_what_many_windows_are_like() -> None:
    """The model hesitates on a single odd window as much as on a group of windows, which no label is near."""
    rng = np.random.default_rng(0)
    group, known = rng.normal(3, 0.2, (20, 2)), rng.normal(0, 0.2, (20, 2))
    features_BF = np.concatenate([known, group, [[-4.0, 0.0]]])
    p_BK = p(*[(0.5, 0.5)] * 41)
    found = choose(p_BK, features_BF, known[:3], 2)
    assert 20 <= found[0].index < 40
    assert found[0].distance >= 0.75, "the reason is that it is unlike what has a label"
    assert found[1].index == 40, "the odd one is asked for next"


def test_typicality_is_one_half_in_the_middle_and_small_for_what_is_alone() -> None:
    features_BF = np.concatenate([np.random.default_rng(0).normal(0, 1, (50, 3)), [[30.0, 0, 0]]])
    found = typicality(features_BF)
    assert ((found > 0) & (found < 1)).all()
    assert np.median(found) == pytest.approx(0.5, abs=0.01)
    assert found.argmin() == 50
    assert found[50] < 0.1
    np.testing.assert_allclose(typicality(10 * features_BF), found, err_msg="the unit does not matter")
    assert typicality(np.zeros((4, 2))).tolist() == [1, 1, 1, 1]
    assert typicality(np.zeros((1, 2))).tolist() == [1]


def test_windows_are_compared_by_the_model_and_by_the_signal() -> None:
    """Of two windows on which the model says the same, the one with another signal is further."""
    signal_BF = np.array([[0.0, 0.0], [2.0, 0.0]])
    both = features(p((0.5, 0.5), (0.5, 0.5)), signal_BF)
    assert np.linalg.norm(both[0] - both[1]) > 0
    np.testing.assert_array_equal(features(None, signal_BF), signal_BF)


def test_a_vector_counts_by_its_values():
    x = np.array([[[1.0], [5.0]], [[3.0], [5.0]]], np.float32)
    signal_BF = signal_features({"m": x}, np.ones((2, 1), np.bool_))
    np.testing.assert_allclose(signal_BF, np.array([[-1, 0], [1, 0]]) / np.sqrt(2))
