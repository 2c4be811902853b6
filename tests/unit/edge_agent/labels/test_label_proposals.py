"""Active learning as a pure function: what is asked first, and what is never asked."""

import numpy as np
import pytest

from edge_agent.labels import proposals
from edge_agent.labels.proposals import choose, is_good, margins, model_features, reason, signal_features

NOTHING = np.zeros((0, 3))


def p(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32)


def asked(p_BK: np.ndarray | None, count: int, labelled: np.ndarray = NOTHING) -> list[int]:
    features = model_features(p_BK)
    return [one.index for one in choose(p_BK, features, labelled, count)]


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
    features = signal_features(x, np.ones((22, 1), np.bool_))
    found = choose(None, features, features[:1], 2)
    assert found[0].index >= 20, "unlike the labelled window"
    assert found[0].margin is None
    assert "no model predicts yet" in reason(found[0], None, ("a",))


def test_a_missing_modality_has_the_features_of_the_mean() -> None:
    rng = np.random.default_rng(0)
    x = {"acc": rng.normal(size=(4, 2, 30)).astype(np.float32), "gyr": np.zeros((4, 1, 30), np.float32)}
    present = np.array([[True, False]] * 4)
    features = signal_features(x, present)
    assert np.isfinite(features).all()
    assert features.shape[0] == 4
    present[0] = False
    assert (signal_features(x, present)[0] == 0).all()


@pytest.mark.parametrize("x", [np.zeros((3, 1, 1), np.float32), np.full((3, 2, 4), 7, np.float32)])
def test_a_constant_signal_gives_finite_features(x: np.ndarray) -> None:
    features = signal_features({"m": x}, np.ones((3, 1), np.bool_))
    assert np.isfinite(features).all()
    assert len(choose(None, features, features[:0], 3)) == 3


def test_a_window_of_bad_quality_or_without_any_modality_is_not_proposed() -> None:
    quality = np.array([[1, 1], [0.4, 1], [1, 0.1], [1, 1]], np.float32)
    present = np.array([[True, True], [True, True], [True, False], [False, False]])
    assert is_good(quality, present, 0.5).tolist() == [True, False, True, False]


def test_the_reason_names_classes_and_what_is_unlike() -> None:
    labels = ("walk", "run", "sit")
    doubtful = np.array([0.48, 0.45, 0.07], np.float32)
    sure = np.array([0.97, 0.02, 0.01], np.float32)
    near, far = proposals.Proposal(0, 0.03, 0.1), proposals.Proposal(0, 0.95, 1.0)
    assert reason(near, doubtful, labels) == "the model hesitates between walk (48%) and run (45%)"
    assert reason(far, sure, labels).startswith("the model says walk (97%), but it is unlike")


def test_a_task_of_one_class_has_no_margin_and_still_a_reason() -> None:
    one = choose(np.ones((2, 1), np.float32), np.ones((2, 1)), np.zeros((0, 1)), 1)[0]
    assert one.margin == 1
    assert "walk" in reason(one, np.ones(1, np.float32), ("walk",))
