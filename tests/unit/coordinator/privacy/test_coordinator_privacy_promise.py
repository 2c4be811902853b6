"""What does not go with ``[privacy]`` is refused before a task runs, and what it promises is said."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.privacy.promise import local_promise, promise
from coordinator.recovery.folder_owner import check_owner, own_task
from coordinator.storage.database import Database
from coordinator.task import problems
from models.privacy.account import overlap, span_of
from models.privacy.local.renyi import epsilon_within, sampled_gaussian
from models.registry import method
from protocol.errors import Misconfigured
from protocol.tasks.features import needed
from protocol.tasks.folding import LocalPrivacy, Privacy, Robust, SecureAggregation
from protocol.tasks.labelling import Labelled
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from tests.support.coordinator.fake import settings_for
from tests.support.tasks import sensors, small_task

TACTFL: dict[str, Any] = {"method": "tactfl", "labelled": Labelled(file="own.npz")}
POISSON = {"sampling": "poisson", "rate": 0.1, "devices": 500}


def a_task(privacy: dict[str, Any], **fields: Any) -> Task:
    given = {"method": "fedavg", **fields}
    table = Privacy.model_validate({"clip": 1.0, "noise_multiplier": 4.0, **privacy})
    return small_task(sensors(a=(1, 20.0)), "ab", privacy=table, **given)


def test_a_device_must_know_the_table() -> None:
    assert "privacy" in needed(a_task({}))
    assert "privacy" not in needed(a_task({}).model_copy(update={"privacy": None}))


@pytest.mark.parametrize("privacy", [{}, POISSON])
@pytest.mark.parametrize(
    "method", [{}, {"method": "disentafl"}, TACTFL | {"config": {"weighting": "equal"}}], ids=str
)
def test_a_sound_task_has_no_problems(privacy: dict[str, Any], method: dict[str, Any]) -> None:
    assert problems(a_task(privacy, **method)) == []


@pytest.mark.parametrize(
    ("privacy", "fields", "words"),
    [
        ({}, {"robust": Robust(fold="median")}, "robust.fold = 'median'"),
        ({}, {"robust": Robust(fold="clip")}, "robust.fold = 'clip'"),
        ({}, {"robust": Robust(outlier_factor=6.0)}, "robust.outlier_factor"),
        ({}, {"method": "qqr"}, "method 'qqr': one clip does not cover its updates"),
        (
            {},
            {"method": "disentafl", "config": {"aggregate": "kd"}},
            "'kd' sends rows of features, which",
        ),
        ({}, TACTFL, "config.weighting = 'similarity' lets one update decide about others; write 'equal'"),
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


class TestNoiseOfDevices:
    """With ``[secure_aggregation]``, too."""

    ROUNDS = Rounds(count=10, min_devices=5)

    def both(self, privacy: dict[str, Any], secure: dict[str, Any] | None = None, **fields: Any) -> Task:
        table = SecureAggregation.model_validate(secure or {})
        return a_task(privacy, secure_aggregation=table, **{"rounds": self.ROUNDS, **fields})

    def test_goes_with_secure_rounds_and_says_against_whom_it_holds(self) -> None:
        task = self.both({})
        assert problems(task) == []
        assert {"privacy", "secure_aggregation", "privacy.device_noise"} <= {*needed(task)}
        assert "privacy.device_noise" not in needed(a_task({}))
        words = promise(task)
        assert words.startswith("after 10 rounds: epsilon ")
        assert "as long as 5 devices of each sum are honest; epsilon" in words

    @pytest.mark.parametrize(
        ("privacy", "secure", "fields", "words"),
        [
            (POISSON, {}, {}, 'privacy.sampling = "poisson": with [secure_aggregation] the coordinator'),
            ({"adaptive_clip": {"count_noise": 3.0}}, {}, {}, "[privacy.adaptive_clip]: with [secure_agg"),
            ({}, {"weights": "samples"}, {}, "secure_aggregation.weights = 'samples': with [privacy]"),
            ({"clip": 1e-5}, {}, {}, "privacy: a device's share of the noise is 2 steps; it must be from 4"),
            (
                {"noise_multiplier": 100.0},
                {"ring_bits": 24, "fraction_bits": 16, "bound": 0.5},
                {},
                "privacy: a sum over 5 devices with their noise can wrap around in ring_bits = 24: ",
            ),
            (
                {},
                {"ring_bits": 24, "fraction_bits": 14, "bound": 1.0},
                {"rounds": Rounds(min_devices=5, devices_per_round=500)},
                "privacy: a sum over 500 devices with their noise can wrap around",
            ),
        ],
    )
    def test_is_refused_in_words_where_it_would_not_hold(
        self, privacy: dict[str, Any], secure: dict[str, Any], fields: dict[str, Any], words: str
    ) -> None:
        task = self.both(privacy, secure, **fields)
        [found] = problems(task)
        assert found.startswith(words)

    def test_stays_with_the_state_folder_and_so_does_the_number_that_shares_it(self, tmp_path: Path) -> None:
        settings, task = settings_for(tmp_path, 1), self.both({})
        with Database(tmp_path / "c.sqlite3") as store:
            own_task(store, task, settings)
            check_owner(store, self.both({"clip": 2.0}, {"ring_bits": 48}), settings)
            for other in (None, SecureAggregation(min_devices=4)):
                changed = task.model_copy(update={"secure_aggregation": other})
                with pytest.raises(Misconfigured, match=r"privacy differs .* with its min_devices stays"):
                    check_owner(store, changed, settings)

    def test_needs_a_method_whose_updates_one_clip_covers(self) -> None:
        [found] = problems(self.both({}, method="qqr"))
        assert found == "[privacy]: method 'qqr': one clip does not cover its updates"


def test_the_local_promise_is_of_a_device_with_few_windows_for_a_window_and_for_a_moment() -> None:
    local = LocalPrivacy(clip=1.0, noise_multiplier=1.0, max_epsilon=15.0)
    task = a_task({}, rounds=Rounds(count=40, min_windows=100), config={"batch": 20, "epochs": 1})
    task = task.model_copy(update={"privacy": None, "local_privacy": local})
    words = local_promise(task, method("fedavg"))
    window = epsilon_within(sampled_gaussian(1.0, 0.2, 5 * 40), local.delta)
    moment = epsilon_within(sampled_gaussian(1.0, 0.2, 5 * 40, overlap(span_of(task), 1.28)), local.delta)
    assert words.startswith(
        f"a device that takes part in all 40 rounds with 100 windows: epsilon {window:.3g} at delta 1e-05 "
        f"for one window, {moment:.3g} for one moment of its streams"
    )
    within = int(words.rpartition("ends its part after ")[2].split()[0])
    k = overlap(span_of(task), 1.28)
    found = [epsilon_within(sampled_gaussian(1.0, 0.2, 5 * n, k), local.delta) for n in (within, within + 1)]
    assert found[0] <= 15.0 < found[1]
    assert local_promise(task.model_copy(update={"local_privacy": None}), method("fedavg")) == ""
    [trouble] = problems(task.model_copy(update={"method": "qqr", "config": {}}))
    assert "[local_privacy]: its devices do not train with DP-SGD" in trouble
