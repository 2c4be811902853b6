"""What does not go with ``[privacy]`` is refused before a task runs, and what it promises is said."""

from typing import Any

import pytest

from coordinator.privacy.promise import promise
from coordinator.task import problems
from protocol.tasks.features import needed
from protocol.tasks.folding import Privacy, Robust
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from tests.support.tasks import sensors, small_task

POISSON = {"sampling": "poisson", "rate": 0.1, "devices": 500}


def a_task(privacy: dict[str, Any], **fields: Any) -> Task:
    given = {"method": "fedavg", **fields}
    table = Privacy.model_validate({"clip": 1.0, "noise_multiplier": 4.0, **privacy})
    return small_task(sensors(a=(1, 20.0)), "ab", privacy=table, **given)


def test_a_device_must_know_the_table() -> None:
    assert "privacy" in needed(a_task({}))
    assert "privacy" not in needed(a_task({}).model_copy(update={"privacy": None}))


@pytest.mark.parametrize("privacy", [{}, POISSON])
def test_a_sound_task_has_no_problems(privacy: dict[str, Any]) -> None:
    assert problems(a_task(privacy)) == []


@pytest.mark.parametrize(
    ("privacy", "fields", "words"),
    [
        ({}, {"robust": Robust(fold="median")}, "robust.fold = 'median'"),
        ({}, {"robust": Robust(fold="clip")}, "robust.fold = 'clip'"),
        ({}, {"robust": Robust(outlier_factor=6.0)}, "robust.outlier_factor"),
        ({}, {"method": "qqr"}, "method 'qqr': "),
        ({"clip": 1e-6}, {}, "privacy: clip times noise_multiplier"),
        ({"max_epsilon": 0.1}, {}, "no version fits into it (after 1 round: epsilon "),
        (POISSON, {"rounds": Rounds(devices_per_round=5)}, "rounds.devices_per_round"),
        (POISSON, {"rounds": Rounds(quorum=0.5)}, "rounds.quorum"),
        (POISSON, {"rounds": Rounds(min_devices=2)}, "rounds.min_devices"),
        (POISSON, {"rounds": Rounds(selection="bandit")}, "rounds.selection = 'bandit'"),
        ({**POISSON, "devices": 10**8}, {}, "an offer names at most 16384 devices"),
    ],
)
def test_what_breaks_the_account_is_named(
    privacy: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    [found] = problems(a_task(privacy, **fields))
    assert words in found
    without = a_task(privacy, **fields).model_copy(update={"privacy": None})
    assert problems(without) == []


def test_a_post_processing_step_is_no_problem() -> None:
    assert problems(a_task({}, aggregator={"kind": "fedadam"})) == []


def test_the_promise_is_for_the_planned_rounds_or_as_many_as_fit() -> None:
    rounds = Rounds(count=40)
    assert promise(a_task({}, rounds=rounds)).startswith("after 40 rounds: epsilon ")
    limited = promise(a_task({"max_epsilon": 5.0}, rounds=rounds))
    assert limited.startswith("after 5 rounds: epsilon ")
    assert "privacy.max_epsilon ends the rounds there, before 40" in limited
    assert "50 of 500 devices take part in a round on average" in promise(a_task(POISSON, rounds=rounds))
    assert promise(a_task({}).model_copy(update={"privacy": None})) == ""
