"""Several tasks in one process: they start, fail and end by themselves, as the file says."""

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.config.coordinator import CoordinatorSettings, MetricsSettings
from coordinator.daemon import Coordinator
from coordinator.status.prometheus import serve_metrics
from runtime.process.daemon import Finished
from tests.support.several_tasks import Fleet, online


async def test_each_task_has_its_own_topics_and_folder(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound", "door")
    async with fleet.run():
        await fleet.until(sound="running", door="running")

        assert sorted(fleet.links) == ["test", "test~door", "test~sound"]
        sound = fleet.coordinator("sound")
        await online(sound, "barn-1")
        assert sound.roster.online() == ("barn-1",)
        assert fleet.main.roster.online() == ()
        assert (tmp_path / "coordinator/tasks/sound/coordinator.sqlite3").is_file()
        assert not any((tmp_path / "coordinator/tasks/sound").glob("identity*"))


async def test_a_task_that_cannot_start_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound", "door")
    (tmp_path / "door.toml").write_text("name = 1", encoding="utf-8")
    async with fleet.run():
        await fleet.until(sound="running", door="failed")

        report = fleet.reports()["door"]
        assert str(tmp_path / "door.toml") in report.why
        assert report.again is not None
        assert "name" in report.why

        fleet.write("sound", "door")
        fleet.tasks.reload()  # the operator mends the file, and need not wait
        await fleet.until(sound="running", door="running")


async def test_a_locked_folder_and_a_foreign_state_are_said_of_their_task_alone(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    settings = fleet.write("sound", "door")
    other = settings.for_task("door").model_copy(update={"fleet": "byre~door"})
    async with fleet.opened(other):
        pass
    (tmp_path / "coordinator/tasks/sound").mkdir()
    with settings.for_task("sound").location.database():  # as another process has it
        async with fleet.run():
            await fleet.until(sound="failed", door="failed")
            reports = fleet.reports()
            assert "coordinator" in reports["sound"].why
            assert "'byre~door'" in reports["door"].why
            assert fleet.main.driver.state.phase != "initialising"


async def test_a_service_that_fails_ends_one_task_and_it_is_tried_again(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound", "door")
    fault = asyncio.Event()

    async def fail() -> None:
        await fault.wait()
        fault.clear()
        raise ValueError("a fault of lichen's")

    fleet.services["test~sound"] = {"fault": fail}
    async with fleet.run():
        await fleet.until(sound="running", door="running")
        failing = fleet.coordinator("sound")
        fault.set()
        await fleet.until(sound="failed", door="running")
        assert "ValueError: a fault of lichen's" in fleet.reports()["sound"].why
        assert fleet.links["test~sound"].ended

        fleet.tasks.runners["sound"].try_again()
        await fleet.until(sound="running", door="running")
        assert fleet.coordinator("sound") is not failing


class SlowToClose(Fleet):
    """The coordinators of further tasks close when they may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()
        self.closed = 0

    @asynccontextmanager
    async def open_task(self, settings: CoordinatorSettings) -> AsyncIterator[Coordinator]:
        async with super().open_task(settings) as coordinator:
            try:
                yield coordinator
            finally:
                self.closing.set()
                await self.may_close.wait()
                self.closed += 1


async def test_a_task_that_is_changed_while_it_closes_first_closes_whole(tmp_path: Path) -> None:
    fleet = SlowToClose(tmp_path)
    fleet.write("sound")

    async def fail() -> None:
        raise ValueError("a fault of lichen's")

    fleet.services["test~sound"] = {"fault": fail}
    async with fleet.run():
        async with asyncio.timeout(30):
            await fleet.closing.wait()
        fleet.services.clear()
        fleet.write("sound", keep_versions=9)
        fleet.tasks.reload()
        await asyncio.sleep(0.1)
        fleet.may_close.set()
        await fleet.until(sound="running")
        assert fleet.coordinator("sound").settings.keep_versions == 9
        assert fleet.closed == 1


async def test_tasks_start_and_end_while_the_others_run(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound")
    async with fleet.run():
        await fleet.until(sound="running")
        first = fleet.coordinator("sound")

        fleet.write("sound", "door")
        fleet.tasks.reload()
        await fleet.until(sound="running", door="running")
        assert fleet.coordinator("sound") is first

        fleet.write("door")
        fleet.tasks.reload()
        await fleet.until(door="running")
        assert fleet.withdrawn == ["test~sound"]
        assert (tmp_path / "coordinator/tasks/sound/coordinator.sqlite3").is_file()


async def test_a_file_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound")
    async with fleet.run():
        await fleet.until(sound="running")
        first = fleet.coordinator("sound")

        fleet.refused = "coordinator.toml: not valid TOML"
        fleet.tasks.reload()
        await asyncio.sleep(0.05)
        fleet.refused = ""
        fleet.write("door", fleet="other")
        fleet.tasks.reload()
        await asyncio.sleep(0.05)

        assert fleet.coordinator("sound") is first
        assert list(fleet.tasks.runners) == ["sound"]
        assert fleet.withdrawn == []


async def test_a_task_that_was_removed_while_nothing_ran_is_withdrawn_at_the_start(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound", "door")
    async with fleet.run():
        await fleet.until(sound="running", door="running")

    fleet.write("door")
    async with fleet.run():
        await fleet.until(door="running")
        assert fleet.withdrawn == ["test~sound"]


async def test_an_end_that_the_broker_does_not_take_is_tried_until_it_does(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound")
    waits = asyncio.Event()

    async def withdraw(settings: CoordinatorSettings) -> None:
        await waits.wait()
        fleet.withdrawn.append(settings.fleet)

    fleet.withdraw = withdraw  # type: ignore[method-assign]
    async with fleet.run():
        await fleet.until(sound="running")
        fleet.write()
        fleet.tasks.reload()
        await fleet.until(sound="ending")
        fleet.write("sound")  # it is wanted again before the broker took its end
        fleet.tasks.reload()
        await fleet.until(sound="running")
        assert fleet.withdrawn == []
        fleet.write()
        fleet.tasks.reload()
        await fleet.until(sound="ending")
        waits.set()
        await fleet.until()
        assert fleet.withdrawn == ["test~sound"]


async def test_the_process_ends_when_all_tasks_are_done(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound")
    async with fleet.run():
        await fleet.until(sound="running")

        async def main_is_done() -> None:
            raise Finished("the main task")

        ending = asyncio.ensure_future(fleet.tasks.finish(main_is_done))
        await asyncio.sleep(0.05)
        assert not ending.done()
        runner = fleet.tasks.runners["sound"]
        runner.report = runner.report.model_copy(update={"state": "done"})
        with pytest.raises(Finished, match="all tasks"):
            async with asyncio.timeout(10):
                await ending


async def test_metrics_of_further_tasks_have_their_name(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound")
    async with fleet.run():
        await fleet.until(sound="running")
        await online(fleet.coordinator("sound"), "barn-1")
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        found = {one.name: one for one in fleet.tasks.metrics()}

        with serve_metrics(MetricsSettings(prometheus_port=port), (*fleet.main.measured, fleet.tasks)):
            url = f"http://127.0.0.1:{port}/metrics"
            page = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())).decode()
        assert 'lichen_devices_online{task="sound"} 1.0' in page
        assert "lichen_devices_online 0.0" in page, "the series of the main task is what it was"
        assert page.count("# TYPE lichen_devices_online ") == 1
        assert found["lichen_task_running"].values == [(("sound",), 1.0)]
        assert found["lichen_round"].labels == ("task",)
        assert found["lichen_round"].values[0][0] == ("sound",)
        assert found["lichen_phase"].labels[-1] == "task"
        assert not [name for name in found if name.startswith("lichen_disk_")]
