"""What predictions are worth in the study, and the judges of what is generated."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.disentafl import STUDY, scores
from lichen_lab.benchmarks.studies.disentafl.data import made
from lichen_lab.benchmarks.studies.disentafl.data.judges import RandomFeatureJudge
from lichen_lab.benchmarks.studies.disentafl.settings import (
    DisentAflOutcome,
    TargetDevice,
    TargetFleet,
    fleet_mean,
)
from models.contract import FloatArray, Profile
from models.data import window_set
from protocol.tasks.task import LABEL

ALL = Profile(("m0",), (LABEL, "t1", "t2"))


@pytest.fixture
def fleet() -> TargetFleet:
    """One device that predicts all kinds of target."""
    fleet = made.build(0, devices=1, test=30)
    windows = made._windows(fleet.task, 30, np.random.default_rng(5))
    member = TargetDevice("d", "all", ALL, windows, windows, {"t2": windows.y_B}, {"t2": windows.y_B})
    return replace(fleet, members=(member,))


def true_outputs(fleet: TargetFleet) -> dict[str, FloatArray]:
    test = fleet.members[0].test
    return {
        LABEL: np.eye(3, dtype=np.float32)[test.y_B],
        "t1": test.targets["t1"].copy(),
        "t2": test.x["clean"].copy(),
    }


def test_what_is_true_scores_all_of_it(fleet: TargetFleet) -> None:
    (member,) = fleet.members
    found = scores.score(fleet, member, true_outputs(fleet))
    assert found == {LABEL: 100.0, "t1": 100.0, "t2": 100.0}
    assert list(found) == list(ALL.targets)


def test_each_kind_loses_by_its_own_measure(fleet: TargetFleet) -> None:
    (member,) = fleet.members
    outputs = true_outputs(fleet)
    outputs[LABEL][:15] = np.roll(outputs[LABEL][:15], 1, axis=1)
    mean = float(outputs["t1"].mean())
    outputs["t1"] = mean + 0.5 * (outputs["t1"] - mean)
    outputs["t2"][:10] = made._waves((member.truth["t2"][:10] + 1) % 3)
    found = scores.score(fleet, member, outputs)
    assert found[LABEL] == pytest.approx(50.0)
    assert found["t1"] == pytest.approx(75.0, abs=0.01)  # half of each deviation is left: a quarter squared
    assert found["t2"] == pytest.approx(100 * 20 / 30)


def test_a_regression_worse_than_the_mean_scores_nothing_not_less(fleet: TargetFleet) -> None:
    (member,) = fleet.members
    outputs = true_outputs(fleet)
    outputs["t1"] = -5 * outputs["t1"]
    assert scores.score(fleet, member, outputs)["t1"] == 0.0
    outputs["t1"][3] = np.nan
    assert scores.score(fleet, member, outputs)["t1"] == 0.0


def test_an_unlabelled_window_does_not_count(fleet: TargetFleet) -> None:
    (member,) = fleet.members
    outputs = true_outputs(fleet)
    outputs[LABEL][0] = np.roll(outputs[LABEL][0], 1)
    outputs["t1"][0] += 100
    y_B, strength_B = member.test.y_B.copy(), member.test.targets["t1"].copy()
    y_B[0], strength_B[0] = -1, np.nan
    test = replace(member.test, y_B=y_B, targets={"t1": strength_B})
    found = scores.score(fleet, replace(member, test=test), outputs)
    assert (found[LABEL], found["t1"]) == (100.0, 100.0)


def test_without_a_judge_a_generation_is_scored_as_a_regression(fleet: TargetFleet) -> None:
    (member,) = fleet.members
    outputs = true_outputs(fleet)
    outputs["t2"] = np.broadcast_to(outputs["t2"].mean(axis=0), outputs["t2"].shape).astype(np.float32)
    assert scores.score(replace(fleet, judges={}), member, outputs)["t2"] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    ("target", "shape"), [(LABEL, (30, 2)), (LABEL, (29, 3)), (LABEL, (30,)), ("t1", (30, 1)), ("t1", (29,))]
)
def test_an_output_of_the_wrong_shape_is_no_score(
    fleet: TargetFleet, target: str, shape: tuple[int, ...]
) -> None:
    outputs = true_outputs(fleet) | {target: np.zeros(shape, np.float32)}
    with pytest.raises(ValueError, match=f"d, {target}"):
        scores.score(fleet, fleet.members[0], outputs)


def test_a_judge_is_seeded_and_recognises_what_it_has_not_seen() -> None:
    task = made.task()
    seen, other = (made._windows(task, 300, np.random.default_rng(s)) for s in (1, 2))
    judges = [RandomFeatureJudge.fitted(seen.x["m0"], seen.y_B, 3, seed, hidden=64) for seed in (0, 0, 1)]
    assert np.array_equal(judges[0].hidden_NH, judges[1].hidden_NH)
    assert np.array_equal(judges[0].last_HK, judges[1].last_HK)
    assert not np.array_equal(judges[0].hidden_NH, judges[2].hidden_NH)
    assert (judges[0](other.x["m0"]) == other.y_B).mean() > 0.9


def test_a_judge_takes_what_is_no_number_for_nothing() -> None:
    windows = made._windows(made.task(), 60, np.random.default_rng(1))
    judge = RandomFeatureJudge.fitted(windows.x["m0"], windows.y_B, 3, 0, hidden=64)
    x_BCT = windows.x["m0"].copy()
    x_BCT[0, 0, 0], x_BCT[1, 0, 0] = np.nan, np.inf
    found_B = judge(x_BCT)
    assert found_B[:2].tolist() == [-1, -1]
    assert np.array_equal(found_B[2:], judge(windows.x["m0"])[2:])


def test_the_mean_weighs_devices_alike_however_many_targets_they_have() -> None:
    assert fleet_mean({"a": {LABEL: 100.0}, "b": {LABEL: 0.0, "t1": 50.0}}) == pytest.approx(62.5)


def test_an_outcome_survives_json() -> None:
    outcome = DisentAflOutcome(
        {"a": {LABEL: 50.0}}, None, [(1, 20.0), (2, 50.0)], {"a": 10.0}, {"a": 20.0}, seconds=1.5
    )
    again = STUDY.read(json.loads(json.dumps(asdict(outcome))))
    assert again == outcome
    assert again.mean == 50.0


def test_made_windows_hold_what_their_targets_say() -> None:
    windows = made._windows(made.task(), 30, np.random.default_rng(0))
    strength_B = np.abs(windows.x["clean"]).max(axis=(1, 2))
    assert np.allclose(strength_B, window_set.target(windows, "t1"), rtol=0.1)
