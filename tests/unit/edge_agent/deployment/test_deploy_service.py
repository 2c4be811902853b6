"""The device's half of a rollout, as a service: what runs, what is on the disk, and what is told of it."""

import asyncio
import json
from functools import partial

import pytest

from edge_agent.config.agent import DeploySettings
from edge_agent.deployment.bundle_store import read_current, read_record
from lichen_lab.simulation.deterministic.machine.disk import SimDisk
from protocol.rollout import Trial
from runtime.storage.disk import DISK
from tests.support.agent.data import toy_task
from tests.support.coordinator.trial_device import FOUR, Device, living
from tests.support.coordinator.trial_runner import FakeRunner
from tests.support.services import until


@pytest.fixture
def make(tmp_path):
    return partial(Device, tmp_path / "state", tmp_path / "shelf")


async def commit(device, version, **more):
    digest = device.point(version, **more)
    await device.runs(version)
    device.runner.answer(0, 1, 2, 0)
    await until(lambda: device.record.committed and device.record.committed.digest == digest, 20)
    await device.written()
    return digest


async def test_a_good_model_commits_and_the_one_before_sees_the_same_windows_meanwhile(make):
    async with living(make) as device:
        first, named = await commit(device, 1), []
        device.runner.on_load = lambda _: named.append(read_record(device.folder).trial)
        second = device.point(2, serial=5)
        await device.runs(2)
        assert [trial.digest for trial in named] == [second], "on the disk before it is loaded"
        one = device.runner.beside
        assert (one.manifest.version, one.ended) == (1, False)
        assert device.deployment.report().phase == "trial"
        assert read_current(device.folder).digest == first, "what passed is what is installed"
        assert "version 2 is on trial: 0 of 4" in device.deployment.trial_wait().why
        device.runner.answer(0, 1)
        wait = device.deployment.trial_wait()
        assert "2 of 4 answers" in wait.why
        assert wait.until is not None
        device.runner.answer(0, 1)
        assert one.ended, "its memory is given back at once"
        await device.written()
        report = device.deployment.report()
        assert (report.phase, report.serial, report.measures["agreement"]) == ("committed", 5, 1)
        assert device.deployment.trial_wait() is None
        assert device.deployment.report().phase == "committed"
        assert [p.name for p in device.folder.iterdir() if p.is_dir()].sort() == [first, second].sort()


async def test_a_bad_model_rolls_itself_back_between_two_windows_and_is_not_tried_again(make):
    async with living(make) as device:
        await commit(device, 1)
        bad = device.point(2, serial=5, own=True)
        await device.runs(2)
        candidate = device.runner.model
        device.runner.answer(0, error="it died")
        assert (device.running, candidate.ended, device.runner.beside) == (1, True, None)
        await device.written()
        assert not (device.folder / bad).exists()
        report = device.deployment.report()
        assert (report.phase, report.serial, report.version) == ("rolled_back", 5, 2)
        assert "no answer to 1 of 1" in report.why
        fetched = len(device.shelf.fetched)
        device.point(2, serial=5, own=True)
        await until(lambda: "version 2 was rolled back: no answer" in device.deployment.why)
        assert len(device.shelf.fetched) == fetched
        device.point(2, serial=6, own=True)
        await device.runs(2)


async def test_with_no_network_a_trial_goes_on_after_a_restart_with_what_it_had_shown(make):
    async with living(make) as device:
        await commit(device, 1)
        device.point(2)
        await device.runs(2)
        device.runner.answer(0, 1, 2)
        await device.deployment.executor.stop()
    for _ in range(5):  # orderly ends are no sign of a bad model
        async with living(make) as again:
            await again.runs(2)
            assert again.runner.beside.manifest.version == 1
            assert again.deployment.report().measures["windows"] == 3
            await again.deployment.executor.stop()
    async with living(make) as last:
        await last.runs(2)
        last.runner.answer(0)
        assert last.record.committed.version == 2


async def test_a_model_that_ends_the_agent_each_time_goes_by_itself(make):
    async with living(make) as device:
        await commit(device, 1)
        device.point(2)
        await device.runs(2)
    bad = device.record.trial.digest
    for start in range(1, 4):
        starts = {}
        async with living(make) as again:
            again.runner.on_load = lambda digest, device=again, starts=starts: starts.update(
                {digest: read_record(device.folder).trial.starts}
            )
            await again.runs(2)
        assert starts[bad] == start, "counted on the disk before it is loaded"
    async with living(make) as last:
        await last.runs(1)
        assert last.runner.loaded == [last.record.committed.digest], "the bad one is not even loaded"
        await last.written()
        assert last.deployment.report().phase == "rolled_back"


async def test_a_model_that_does_not_run_is_refused_and_after_a_start_rolled_back(make):
    async with living(make) as device:
        await commit(device, 1)
        device.runner.on_load = device.runner.refuses.add
        device.point(2)
        await until(lambda: "does not run here: it dies" in device.deployment.last_refusal)
        assert (device.running, device.deployment.report().phase) == (1, "refused")
        await device.written()
        device.runner.on_load = lambda _: None
        device.point(3)
        await device.runs(3)
    third = device.record.trial.digest
    async with living(partial(make, runner=FakeRunner({third}))) as again:
        await until(lambda: again.deployment.report().phase == "rolled_back")
        assert again.running == 1


async def test_a_model_that_inference_gave_up_is_rolled_back(make):
    async with living(make) as device:
        await commit(device, 1)
        device.point(2)
        await device.runs(2)
        device.runner.model, device.runner.disabled_reason = None, "it died three times"
        await device.runs(1)
        assert device.deployment.report().why == "it died three times"


async def test_a_full_disk_keeps_no_bad_model_active_and_the_book_is_written_when_there_is_room(
    make, tmp_path, monkeypatch
):
    monkeypatch.setattr("edge_agent.deployment.executor._RETRY_S", 0.05)
    disk = SimDisk(tmp_path)
    DISK.set(disk)
    async with living(make) as device:
        await commit(device, 1)
        device.point(2)
        await device.runs(2)
        disk.trouble = 28
        device.runner.answer(0, error="it died")
        assert device.running == 1
        await asyncio.sleep(0.2)
        assert read_record(device.folder).trial is not None
        disk.trouble = 0
        await device.written()
        assert read_record(device.folder).trial is None


async def test_with_a_full_disk_no_trial_begins(make, tmp_path, monkeypatch):
    monkeypatch.setattr("edge_agent.deployment.service._RETRY_S", 0.05)
    monkeypatch.setattr("edge_agent.deployment.executor._RETRY_S", 0.05)
    disk = SimDisk(tmp_path)
    DISK.set(disk)
    async with living(make) as device:
        await commit(device, 1)
        loaded, unpacked = [*device.runner.loaded], device.folder / device.point(2)
        await until(unpacked.exists)
        disk.trouble = 28
        await asyncio.sleep(0.2)
        if device.running == 1:  # else it was quicker than the disk became full
            assert device.runner.loaded == loaded
        disk.trouble = 0
        await device.runs(2)


async def test_the_device_s_own_pointer_counts_until_its_topic_is_cleared(make):
    async with living(make) as device:
        await commit(device, 1, serial=3)
        device.point(2, serial=4, own=True)
        await device.runs(2)
        device.point(1, serial=3)
        await asyncio.sleep(0.05)
        assert device.running == 2, "an earlier decision, wherever it comes from"
        device.point(1, serial=5)
        await device.runs(1)
        assert device.record.bad == ()
        device.deployment.cleared(own=True)
        device.deployment.cleared(own=False)
        await until(lambda: device.deployment._announced.best is None)
        assert device.running == 1


async def test_what_comes_while_another_is_pulled_is_what_is_tried(make):
    async with living(make) as device:
        device.shelf.gate = asyncio.Event()
        device.point(1)
        await until(lambda: device.shelf.fetched)
        device.point(2)
        device.shelf.gate.set()
        await device.runs(2)
        await until(lambda: len(folders(device)) == 1, 20)
        said = json.loads((folders(device)[0] / "manifest.json").read_text())
        assert (said["version"], len(device.runner.loaded)) == (2, 1)


def folders(device):
    return [p for p in device.folder.iterdir() if p.is_dir()]


async def test_a_rollout_s_own_rules_hold_for_its_trial(make):
    async with living(make) as device:
        await commit(device, 1)
        device.point(2, serial=1, trial=Trial(windows=2, min_agreement=1.0))
        await device.runs(2)
        device.runner.answer(0, 1, before=(0, 2))
        await device.runs(1)
        assert "on 1 of 2: 50.0% (at least 100.0%)" in device.deployment.report().why


async def test_another_task_ends_a_trial_and_what_does_not_fit_it(make):
    async with living(make) as device:
        await commit(device, 1)
        device.point(2)
        await device.runs(2)
        device.work.task = toy_task(name="other")
        device.deployment.task_changed()
        assert device.running is None
        assert "no model for the new task" in device.runner.disabled_reason
        await device.written()
        assert (device.record.trial, device.record.bad) == (None, ())
        device.work.task = toy_task()
        device.deployment.task_changed()
        await device.runs(2)
        assert device.record.trial is not None, "tried again"


async def test_a_file_of_a_release_without_trials_is_read_and_what_it_names_runs(make):
    async with living(make) as device:
        first, second = await commit(device, 1), await commit(device, 2)
    old = {"task": "toy", "version": 2, "digest": second, "previous": first, "epoch": 4}
    (device.folder / "current.json").write_text(json.dumps(old))
    record = read_record(device.folder)
    assert (record.committed.version, record.committed.epoch, record.before.digest) == (2, 4, first)
    async with living(make) as again:
        await again.runs(2)
        assert again.record.trial is None, "what ran had run"


async def test_both_folders_damaged_leave_no_model_and_the_next_pointer_mends_it(make):
    async with living(make) as device:
        for version in (1, 2):
            await commit(device, version)
    for folder in folders(device):
        (folder / "model.onnx").write_bytes(b"")
    async with living(make) as again:
        await until(lambda: again.record.committed is None)
        assert again.running is None
        again.point(2)
        await again.runs(2)


async def test_a_damaged_trial_is_no_fault_of_the_model_and_is_pulled_again(make):
    async with living(make) as device:
        await commit(device, 1)
        damaged = device.point(2)
        await device.runs(2)
    (device.folder / damaged / "model.onnx").write_bytes(b"")
    async with living(make) as again:
        await again.runs(1)
        await until(lambda: again.record.trial is None)
        again.point(2)
        await again.runs(2)


async def test_the_first_model_that_fails_leaves_none_and_says_so(make):
    async with living(make) as device:
        device.point(1)
        await device.runs(1)
        device.runner.answer(0, error="it died")
        assert device.running is None
        assert "there is no former one" in device.runner.disabled_reason
        assert device.deployment.report().phase == "rolled_back"
        device.point(2)
        await device.runs(2)


async def test_a_newer_version_is_not_kept_waiting_by_a_device_that_has_few_windows(make):
    async with living(partial(make, settings=DeploySettings(trial=FOUR))) as device:
        await commit(device, 1)
        device.point(2)
        await device.runs(2)
        device.runner.answer(0)
        device.point(3)
        await device.runs(3)
        assert device.record.committed.version == 2, "judged by the window that came"
