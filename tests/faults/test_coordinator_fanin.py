"""Many updates at once: no receipt before its frame and its row are on disk, whatever dies or fills up."""

import asyncio
import errno
import json
import random
import resource
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.recovery.evidence import frames_of
from coordinator.round_machine.queries import replay
from coordinator.status.history import read
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.frame_files import scan
from coordinator.storage.location import DATABASE
from coordinator.storage.update_journal import Journal
from lichen_lab.simulation.deterministic.machine.disk import SimDisk
from protocol.errors import Reason, Transient
from protocol.frames.frame import digest
from protocol.topics import Kind
from runtime.storage.disk import DISK
from tests.faults.test_coordinator_kill import ROOT, Child, check_books, fleet
from tests.support.coordinator.bench import Bench, bench
from tests.support.coordinator.fake import FakeDevice, frame, header, tiny_task
from tests.support.network.brokers import BrokerProcess, mosquitto  # noqa: F401 - a fixture

MANY = 20


def require_in_journal(root: Path, devices: list[FakeDevice]) -> int:
    """Every update that a device holds a receipt for has a row and its frame; returns how many frames."""
    path = root / "coordinator" / DATABASE
    looked = 0
    with Database(path) as store:
        journal = Journal(store, root / "coordinator" / "updates")
        state, _ = replay(store.journal())
        for device in devices:
            for receipt in device.receipts:
                assert receipt.status == "accepted", receipt
                assert journal.find(device.name, receipt.digest) == receipt.round
                entry = journal.entries(receipt.round, [device.name])[0]
                if receipt.round > state.version:  # frames of folded rounds go, one by one
                    assert digest(entry.verified()) == receipt.digest
                    looked += 1
    return looked


async def test_killed_in_a_storm_of_updates_every_receipt_is_in_the_journal(
    tmp_path: Path,
    mosquitto: BrokerProcess,  # noqa: F811
) -> None:
    moments, looked = random.Random(11), 0
    task = tiny_task(count=4, min_devices=MANY, deadline_s=60.0)
    async with fleet(tmp_path, mosquitto.port, task, count=MANY) as (child, devices):
        # A fold that does not end leaves the first round's frames where they can be looked at.
        for slow, least in (("fold", MANY // 2), ("", 1), ("", 1)):
            await child.start(slow)
            before = sum(len(device.receipts) for device in devices)
            wanted = before + moments.randrange(least, MANY)
            async with asyncio.timeout(20):
                while sum(len(device.receipts) for device in devices) < wanted:  # noqa: ASYNC110 - of many devices
                    await asyncio.sleep(0.001)
            await child.kill()
            looked += require_in_journal(tmp_path, devices)
        await child.start()
        assert await child.status() == 0
    assert looked >= MANY // 2
    check_books(tmp_path, 4, sorted(f"d{n}" for n in range(1, MANY + 1)))


class QuietChild(Child):
    """Its log is no file: a limit on files would hit the log as well."""

    async def start(self, slow: str = "") -> None:
        file = self.folder / "args.json"
        file.write_text(json.dumps(self.args | {"slow": slow}))
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.coordinator.child", str(file)),
            cwd=ROOT,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )


async def test_on_a_full_disk_nothing_is_receipted_and_all_of_it_when_there_is_room(
    tmp_path: Path,
    mosquitto: BrokerProcess,  # noqa: F811
) -> None:
    task = tiny_task(count=2, min_devices=6, deadline_s=60.0)
    async with fleet(tmp_path, mosquitto.port, task, count=6) as (first, devices):
        for device in devices:
            device.mute = True
        child = QuietChild(first.folder, mosquitto.port, task)
        await child.start()
        first.process = child.process  # the fleet ends it
        for device in devices:
            await device.wait_for(lambda device=device: bool(device.offers))
        pid = child.process.pid
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))  # every write to a file fails
        for device in devices:
            device.mute = False
            device.offers.clear()
        for device in devices:
            await device.wait_for(lambda device=device: bool(device.offers))
        await asyncio.sleep(1.5)  # they send, and send again
        assert child.process.returncode is None
        assert not any(device.receipts for device in devices)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        assert await child.status() == 0
    check_books(tmp_path, 2, [f"d{n}" for n in range(1, 7)])


async def give_all(made: Bench, updates: dict[str, bytes]) -> None:
    await asyncio.gather(*(made.give(name, Kind.UPDATE, update) for name, update in updates.items()))


def updates_for(made: Bench, names: tuple[str, ...]) -> dict[str, bytes]:
    state = made.app.driver.state
    return {n: frame(header(n, state.round, state.manifest), float(n[1:])) for n in names}


NAMES = tuple(f"d{n:02}" for n in range(1, 13))
TASK = tiny_task(count=2, min_devices=len(NAMES))


async def test_the_rows_are_committed_after_the_frames_are_durable_and_together(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path)
    token = DISK.set(disk)
    try:
        async with bench(tmp_path, TASK) as made:
            await made.online(*NAMES)
            await made.phase("collecting")
            folder = tmp_path / "coordinator" / "updates" / "1"
            rows = sa.select(schema.updates.c.file, schema.updates.c.digest)
            commits: list[int] = []
            tell = disk.before_commit

            def check(path: Path) -> None:
                tell(path)
                with made.app.storage.store.transaction() as connection:
                    here = [folder / (file or name) for file, name in connection.execute(rows)]
                if len(here) != sum(commits):
                    commits.append(len(here) - sum(commits))
                assert all(disk.is_durable(file) for file in here), "a row before its frame is on disk"

            disk.before_commit = check
            await give_all(made, updates_for(made, NAMES[:-1]))
            assert sum(commits) == len(NAMES) - 1
            assert len(commits) <= len(NAMES) // 2, f"so many transactions: {commits}"
            assert all(made.link.receipts(name)[-1].status == "accepted" for name in NAMES[:-1])
    finally:
        DISK.reset(token)


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EROFS])
async def test_a_disk_that_takes_nothing_costs_receipts_and_no_update(tmp_path: Path, trouble: int) -> None:
    disk = SimDisk(tmp_path)
    token = DISK.set(disk)
    try:
        async with bench(tmp_path, TASK) as made:
            await made.online(*NAMES)
            await made.phase("collecting")
            updates = updates_for(made, NAMES)
            disk.trouble = trouble
            await give_all(made, updates)
            assert not any(made.link.receipts(name) for name in NAMES)
            assert tuple(made.app.driver.state.delivered) == ()
            disk.trouble = 0
            await give_all(made, updates)  # the devices send again
            assert all(made.link.receipts(name)[-1].status == "accepted" for name in NAMES)
            await made.until(lambda: made.app.driver.state.version == 1)
    finally:
        DISK.reset(token)


async def test_the_update_that_closes_the_round_is_the_last_of_its_group_that_counts(tmp_path: Path) -> None:
    names = NAMES[:3]
    async with bench(tmp_path, tiny_task(count=2, min_devices=1, quorum=0.5), spread_s=0.2) as made:
        await made.online(*names)
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == names
        commits, updates = made.app.receiver.commits, updates_for(made, names)
        async with commits._writing:
            tasks = [
                asyncio.create_task(
                    commits.accept(header(n, 1, made.app.driver.state.manifest), digest(u), u)
                )
                for n, u in updates.items()
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [getattr(result, "reason", None) for result in results] == [None, None, Reason.WRONG_ROUND]
        await made.until(lambda: made.app.driver.state.version >= 1)
    assert read(tmp_path / "coordinator")["versions"][1]["devices"] == list(names[:2])
    folder = tmp_path / "coordinator" / "updates" / "1"
    found = [name for file in folder.glob("*.group") for _, name, _ in scan(file.read_bytes())]
    assert found == [digest(updates[name]) for name in names]
    assert [one.header.device for one in frames_of(folder, TASK, 1)] == list(names[:2]), (
        "it was told: not counted"
    )


async def test_the_same_update_twice_and_two_of_one_device_in_a_group(tmp_path: Path) -> None:
    async with bench(tmp_path, TASK) as made:
        await made.online(*NAMES)
        await made.phase("collecting")
        state, commits = made.app.driver.state, made.app.receiver.commits
        one = header("d01", state.round, state.manifest)
        same, other = frame(one, 1.0), frame(one, 2.0)
        results = await asyncio.gather(
            *(commits.accept(one, digest(update), update) for update in (same, same, other, same)),
            return_exceptions=True,
        )
        assert [getattr(result, "reason", None) for result in results] == [None, None, Reason.DUPLICATE, None]
        assert tuple(made.app.driver.state.delivered) == ("d01",)
        assert commits.largest >= 2


async def test_an_error_of_the_disk_reaches_all_of_a_group_and_the_next_group_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path, TASK) as made:
        await made.online(*NAMES)
        await made.phase("collecting")
        commits = made.app.receiver.commits
        heads = [header(n, 1, made.app.driver.state.manifest) for n in NAMES[:4]]
        sent = [(head, frame(head)) for head in heads]

        def full(*_: object) -> None:
            raise Transient("no space left")

        monkeypatch.setattr(made.app.storage.store, "append", full)
        results = await asyncio.gather(
            *(commits.accept(head, digest(u), u) for head, u in sent), return_exceptions=True
        )
        assert [type(result) for result in results] == [Transient] * 4
        assert tuple(made.app.driver.state.delivered) == ()
        monkeypatch.undo()
        await asyncio.gather(*(commits.accept(head, digest(u), u) for head, u in sent))
        assert tuple(made.app.driver.state.delivered) == NAMES[:4]


async def test_who_waits_for_a_writer_that_is_cut_off_is_told(tmp_path: Path) -> None:
    async with bench(tmp_path, TASK) as made:
        await made.online(*NAMES)
        await made.phase("collecting")
        commits = made.app.receiver.commits
        heads = [header(n, 1, made.app.driver.state.manifest) for n in NAMES[:3]]
        async with commits._writing:
            tasks = [
                asyncio.create_task(commits.accept(head, digest(frame(head)), frame(head))) for head in heads
            ]
            await asyncio.sleep(0)
            tasks[2].cancel()  # waits in the queue: it takes nothing with it
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()  # writes for both
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError | None)
        assert isinstance(results[1], Transient | None)
        await commits.accept(heads[1], digest(frame(heads[1])), frame(heads[1]))
        assert "d02" in made.app.driver.state.delivered
