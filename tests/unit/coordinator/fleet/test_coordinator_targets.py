"""What further targets change for the coordinator: who is able, what is covered, what may not change."""

import numpy as np
import pytest

from coordinator.config.coordinator import load_settings
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import Requirements, profile_of, requirements_of
from coordinator.recovery.folder_owner import check_owner, own_task
from coordinator.round_machine.commands import Select
from coordinator.round_machine.events import RoundState, Rules
from coordinator.selection.selector import DeviceSelector
from coordinator.storage.database import Database
from coordinator.task import load_task
from models.contract import Profile
from protocol.errors import Misconfigured
from protocol.messages import ModalityState, State
from protocol.tasks.task import Modality, Target
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import settings_for, tiny_task

SPEED = Target(name="speed", kind="regression")


def state(device: str, *sensors: str, windows=(2, 0), **changes: object) -> State:
    known = {name: ModalityState(windows=windows) for name in sensors}
    given = {"status": "online", "device": device, "roles": ("train",), "modalities": known, "windows": 3}
    return State.model_validate(given | changes)


def test_a_profile_is_what_the_task_has_of_what_a_device_says() -> None:
    task = tiny_task().model_copy(update={"targets": (SPEED,)})
    assert profile_of(task, state("a", "gyro", "acc", "nose")) == Profile(("acc", "gyro"), ("label",))
    both = state("a", "acc", targets=("speed", "label", "taste"))
    assert profile_of(task, both) == Profile(("acc",), ("label", "speed"))
    assert profile_of(task, state("a", "acc", targets=())) == Profile(("acc",), ())
    unread = Modality(name="scent", channels=1, rate_hz=1, input=False)
    more = task.model_copy(update={"modalities": (*task.modalities, unread)})
    assert profile_of(more, state("a", "acc", "scent")) == Profile(("acc",))


def test_a_device_that_reads_nothing_of_a_routed_task_is_told_so() -> None:
    routed = requirements_of(tiny_task().model_copy(update={"method": "disentafl"}), "")
    assert routed.routed
    assert routed.lacks(state("a", "nose")) == "no modality of the task: acc, gyro"
    assert routed.lacks(state("a", "gyro")) == ""
    assert (
        requirements_of(tiny_task().model_copy(update={"method": "qqr"}), "").lacks(state("a", "nose")) == ""
    )


async def test_coverage_counts_a_target_that_a_device_learns_as_a_cell(tmp_path) -> None:
    task = tiny_task(devices_per_round=2).model_copy(update={"targets": (SPEED,)})
    with Database(tmp_path / "c.sqlite3") as store:
        roster = DeviceRegistry(store, lambda: 0.0)
        for n in range(12):
            roster.update(state(f"d{n:02}", "acc", windows=(2, 1)))
        roster.update(state("fast", "acc", windows=(0, 0), targets=("speed",)))
        chooser = DeviceSelector(task, Rules.of(task), roster, store, lambda _: ())
        for round_ in range(1, 9):
            asked = Select(round=round_, attempt=1)
            chosen = await chooser.choose(asked, roster.online(), RoundState(), Requirements(1))
            assert "fast" in chosen.devices
            assert chosen.why["fast"] == "covers acc x speed"


async def test_a_further_attempt_asks_only_as_many_as_are_still_wanted_and_nobody_who_delivered(
    tmp_path,
) -> None:
    task = tiny_task(devices_per_round=3)
    with Database(tmp_path / "c.sqlite3") as store:
        roster = DeviceRegistry(store, lambda: 0.0)
        names = [f"d{n}" for n in range(6)]
        for name in names:
            roster.update(state(name, "acc", windows=(2, 1)))
        chooser = DeviceSelector(task, Rules.of(task), roster, store, lambda _: ())
        for delivered, asked in (((), 3), (("d0", "d4"), 1), (("d0", "d1", "d2", "d4"), 1)):
            given = RoundState(round=1, attempt=2, delivered=delivered, invited=delivered)
            chosen = await chooser.choose(Select(round=1, attempt=2), names, given, Requirements(1))
            assert len(chosen.devices) == asked
            assert not set(chosen.devices) & set(delivered)
            assert chosen.why.keys() == {*chosen.devices, *delivered}
            assert all(chosen.why[name] == "delivered in an earlier attempt" for name in delivered)


def test_other_targets_need_another_folder(tmp_path) -> None:
    settings, task = settings_for(tmp_path, 1), tiny_task()
    with Database(tmp_path / "c.sqlite3") as store:
        own_task(store, task, settings)
        check_owner(store, tiny_task(selection="bandit"), settings)
        with pytest.raises(Misconfigured, match="targets differs"):
            check_owner(store, task.model_copy(update={"targets": (SPEED,)}), settings)


def test_what_the_coordinator_trains_by_itself_may_change_and_what_devices_train_may_not(tmp_path) -> None:
    settings = settings_for(tmp_path, 1)
    task = tiny_task().model_copy(update={"method": "tactfl", "config": {"finetune_lr": 5.0, "lr": 0.01}})
    with Database(tmp_path / "c.sqlite3") as store:
        own_task(store, task, settings)
        tamed = {"finetune_lr": 0.001, "head_epochs": 5, "sharpness": 1.0, "lr": 0.01}
        check_owner(store, task.model_copy(update={"config": tamed}), settings)
        with pytest.raises(Misconfigured, match="config differs"):
            check_owner(store, task.model_copy(update={"config": {**tamed, "lr": 0.02}}), settings)


@pytest.mark.parametrize(("label", "works"), [(1.0, True), (np.nan, False)])
def test_windows_that_are_labelled_for_another_target_judge_a_version(tmp_path, label, works) -> None:
    (tmp_path / "task.toml").write_text(
        'name = "t"\nmethod = "disentafl"\nlabels = ["a", "b"]\n'
        '[[modalities]]\nname = "acc"\nchannels = 1\nrate_hz = 10\n'
        '[[targets]]\nname = "moves"\nlabels = ["no", "yes"]\n'
    )
    (tmp_path / "c.toml").write_text(
        'fleet = "f"\nstate_dir = "s"\ntask = "task.toml"\n[evaluation]\ndata = "w.npz"\n'
    )
    np.savez(
        tmp_path / "w.npz",
        **{
            "x/acc": np.zeros((2, 1, 26)),
            "present": np.ones((2, 1)),
            "quality": np.ones((2, 1)),
            "y": np.full(2, -1),
            "target/moves": np.full(2, label),
        },
    )
    settings = load_settings(tmp_path / "c.toml")
    if works:
        assert load_task(settings)[0].target_names == ("label", "moves")
        return
    with pytest.raises(Misconfigured, match="none of its 2 windows is labelled"):
        load_task(settings)


async def test_a_routed_device_without_data_is_not_taken_for_one_without_a_task(tmp_path):
    """Else the whole fleet is told the task again and again, for each device that has no windows."""
    async with bench(tmp_path) as made:
        for _ in range(3):
            await made.online("a", modalities={}, targets=(), windows=0)
        assert not made.app.announcer._task_again
        for _ in range(2):
            await made.online("b", modalities={}, windows=0)
        assert made.app.announcer._task_again
