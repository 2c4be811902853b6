"""The coordinator on a disk that fails it: what it says, and that it acknowledges nothing."""

import shutil

import pytest
from structlog.testing import capture_logs

from coordinator.cli import status
from coordinator.cli.status import look
from coordinator.storage.model_registry import ModelRegistry
from protocol.errors import Transient
from protocol.frames.frame import digest
from protocol.topics import Kind
from runtime.clock import SystemClock
from runtime.storage.files import ReadOnlyDisk
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task


async def test_a_select_that_fails_once_does_not_end_the_announcements(tmp_path, monkeypatch) -> None:
    """It stood outside of the try: one busy moment of the disk ended the daemon with 75."""
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        announcer = made.app.announcer

        def busy(_version: int) -> dict[str, float]:
            raise Transient("coordinator.sqlite3: another process holds the database")

        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(announcer.registry, "metrics", busy)
            assert not await announcer.publish_round()
            made.app.wires.changes.set()
            await made.until(lambda: [one["event"] for one in logs].count("round_not_announced") >= 2)
        said = len(made.link.sent)
        await made.online("a")
        made.app.wires.changes.set()
        await made.until(lambda: len(made.link.sent) > said)


async def test_no_update_is_acknowledged_into_a_database_that_is_gone(tmp_path) -> None:
    """SQLite goes on in the unlinked file; three updates were acknowledged and lost."""
    ends = pytest.raises(AssertionError, match=r"a service failed.*watch.*it is gone")  # with 75: its service
    with ends:
        await _acknowledged_nothing(tmp_path)


async def _acknowledged_nothing(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.app.model.state()  # in memory: the update comes as far as the database
        shutil.rmtree(tmp_path / "coordinator")
        update = frame(header("a", 1, base))
        with capture_logs() as logs:
            await made.give("a", Kind.UPDATE, update)
            await made.until(lambda: any(one["event"] == "not_stored" for one in logs))
        why = next(one["why"] for one in logs if one["event"] == "not_stored")
        assert "coordinator.sqlite3: it is gone" in why
        assert not [one for one in made.link.to("a", Kind.RECEIPT) if one.digest == digest(update)]
        with pytest.raises(Transient, match="it is gone"):
            await made.app.services()["state"]()


async def test_status_why_names_the_disk_that_takes_nothing(tmp_path, monkeypatch) -> None:
    """The daemon cannot write down what it cannot write: the command looks for itself."""
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a")
        monkeypatch.setattr(status, "disk_trouble", lambda folder: f"the disk of {folder} is read-only")
        with made.app.settings.location.database(read_only=True) as store:
            _, waits = look(store, made.app.settings, SystemClock().wall())
    assert (waits[0].what, waits[0].why) == ("disk", f"the disk of {tmp_path / 'coordinator'} is read-only")


async def test_a_disk_that_is_read_only_while_the_first_version_is_made_is_waited_for(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("coordinator.round_machine.retry_delay._PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr("coordinator.rounds.driver.TICK_S", 0.02)
    put, tries = ModelRegistry.publish, []

    def once(self, *given, **more):
        tries.append(1)
        if len(tries) == 1:
            raise ReadOnlyDisk(tmp_path / "blobs", "Read-only file system")
        return put(self, *given, **more)

    monkeypatch.setattr(ModelRegistry, "publish", once)
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.until(lambda: made.app.driver.state.version == 0)
    assert len(tries) == 2
