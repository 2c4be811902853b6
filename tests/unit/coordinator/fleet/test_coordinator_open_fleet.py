"""What an open fleet costs whose names are made up: bytes of disk, of log and of rows, and who gives way."""

import contextlib
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.admission.quarantine import MAX_TRACKED
from coordinator.cli import device as device_cli
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.device_removal import FOLDER
from coordinator.fleet.limits import (
    BYTES_OPEN,
    MOST_OPEN,
    OPEN_DISK_BYTES,
    OPEN_LOG_BYTES_A_DAY,
    REPLACED_BURST,
    RosterBounds,
    roster_bounds,
)
from coordinator.messaging.log_rate_limit import BURST_OF_ALL, LINE_BYTES, OF_ALL_A_SECOND
from coordinator.storage import schema
from coordinator.storage.backup import BYTES_A_SECOND, FREE_BYTES, back_up, backup_of, is_due
from coordinator.storage.database import _MAX_REFUSAL_ROWS, Database
from coordinator.storage.location import DATABASE
from coordinator.storage.update_journal import MAX_WITHDRAWN_OF_ALL, Journal
from protocol import messages
from protocol.errors import Reason, Refused, Transient
from protocol.messages import ModalityState, State
from protocol.topics import Kind, device_topic
from runtime import logs
from runtime.mqtt.link import Message
from runtime.settings.load import LogSettings
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, frame, header, settings_for, tiny_task

DAY_S = 86_400
DOCS = Path(__file__).parents[4] / "docs"


def state_of(device: str, status: str = "online", **changes: object) -> State:
    given = {"roles": ("train",), "modalities": {"acc": ModalityState(windows=(9, 0))}, "windows": 9}
    return State.model_validate({"status": status, "device": device} | given | changes)


def large(device: str) -> State:
    """As large as a state of the tiny task can be and be taken."""
    reasons = tuple(f"{n:02}" + "r" * 60 for n in range(12))
    many = {f"m{n}": ModalityState(windows=(10**6, 10**6), reasons=reasons) for n in range(5)}
    return state_of(device, modalities=many, roles=("observe",))


def filled(folder: Path) -> None:
    """A database at its bounds: roster, refusals, records of conduct."""
    (folder / "coordinator").mkdir()
    size = len(large("made-up-000000").model_dump_json(exclude_none=True))
    names = [f"made-up-{n:048}" for n in range(_MAX_REFUSAL_ROWS)]
    with Database(folder / "coordinator" / DATABASE) as store, store.transaction() as connection:
        rows = [
            {"device": n, "state": large(n).model_dump(mode="json", exclude_none=True), "wall": 1.0}
            for n in names[: min(MOST_OPEN, BYTES_OPEN // (size + 64))]
        ]
        connection.execute(schema.devices.insert(), rows)
        counted = {"reason": "malformed", "count": 1, "last_detail": "d" * 300, "last_wall": 1.0}
        connection.execute(schema.refusals.insert(), [{"device": n, **counted} for n in names])
        record = json.dumps({"times": [1.0] * 5, "level": 1, "since": 1.0, "until": 2.0, "reason": "m"})
        lost = {"round": 1, "reason": "outlier", "detail": "d" * 400, "wall": 1.0}
        withdrawn = [{"device": n, "digest": f"{n:0>64}", **lost} for n in names[:MAX_WITHDRAWN_OF_ALL]]
        connection.execute(schema.withdrawn.insert(), withdrawn)
        known = [{"device": n, "record": record} for n in names[:MAX_TRACKED]]
        connection.execute(schema.standing.insert(), known)


@pytest.mark.long
async def test_made_up_names_cost_at_most_what_the_docs_say(tmp_path, capfd) -> None:
    """Real ingest, store and log: a coordinator at its bounds, and names made up at full speed."""
    filled(tmp_path)
    quiet = {"level": "info", "format": "json"}
    logs.configure(LogSettings.model_validate(quiet))
    before = len(capfd.readouterr().err)
    assert before >= 0
    async with bench(tmp_path, tiny_task(min_devices=2), log=quiet) as made:
        done: list[str] = []

        async def give(device: str, kind: Kind, payload: bytes) -> None:
            topic = device_topic(FLEET, device, kind)
            await made.app.dispatcher.dispatch(Message(topic, payload, False, lambda: done.append("")))

        for n in range(700):
            await give(f"newer-{n:050}", Kind.STATE, messages.encode(large(f"newer-{n:050}")))
            await give(f"worse-{n:050}", Kind.UPDATE, b"\xd9\xd9\xf7 garbage")
            await made.app.dispatcher.dispatch(Message("\\\u20ac" * 500, b"", False, lambda: done.append("")))
        await made.until(lambda: len(done) == 2100)
        made.app.storage.ledger.save()
        assert len(made.app.roster) <= MOST_OPEN
        database = made.app.storage.root / DATABASE
        back_up(database)
        files = [database, database.with_name(database.name + "-wal"), backup_of(database)]
        disk = sum(file.stat().st_size for file in files)
        rows = made.app.storage.store.rows(sa.select(sa.func.count()).select_from(schema.refusals))
    assert rows[0]["count_1"] <= _MAX_REFUSAL_ROWS + 2 * len(Reason), "and what is counted under (others)"
    assert OPEN_DISK_BYTES / 4 < disk <= OPEN_DISK_BYTES, f"{disk:,} bytes"
    said = capfd.readouterr().err.splitlines()
    about = [line for line in said if '"unsaid"' in line or '"refused"' in line or "device_online" in line]
    assert len(about) > REPLACED_BURST
    assert max(map(len, about)) <= LINE_BYTES, max(about, key=len)
    two_voices = 2 * (BURST_OF_ALL + DAY_S * OF_ALL_A_SECOND) * LINE_BYTES
    assert two_voices <= OPEN_LOG_BYTES_A_DAY


def test_the_docs_say_these_numbers() -> None:
    page = (DOCS / "hostile-peers.md").read_text()
    assert f"{OPEN_DISK_BYTES // 2**20} MiB of disk" in page
    assert f"{OPEN_LOG_BYTES_A_DAY // 2**20} MiB of log a day" in page
    assert f"{MOST_OPEN:,} names" in page


@pytest.fixture
def store(tmp_path):
    with Database(tmp_path / "c.sqlite3") as made:
        yield made


def test_in_an_open_fleet_names_that_never_contributed_give_way_at_a_rate(store, monkeypatch) -> None:
    now = [0.0]
    roster = DeviceRegistry(store, lambda: 1.0, lambda: now[0], RosterBounds(3, 10**6, replaces=True))
    for device, status in (("worker", "offline"), ("old", "online"), ("away", "offline")):
        now[0] += 1.0
        roster.update(state_of(device, status))
    roster.contributed("worker")
    roster.update(state_of("new-1"))
    assert roster.names() == ("new-1", "old", "worker"), "who is away gives way before who is here"
    roster.update(state_of("new-2"), keep={"old"})
    assert roster.names() == ("new-2", "old", "worker"), "not one that a round waits for"
    assert roster.replaced() == ["away", "new-1"]
    for n in range(int(REPLACED_BURST) - 2):
        roster.update(state_of(f"more-{n}"))
    looked: list[str] = []
    least = roster._least
    monkeypatch.setattr(roster, "_least", lambda *given: looked.append("") or least(*given))
    with pytest.raises(Refused, match=r"devices\.most"):
        roster.update(state_of("too-fast"))
    assert not looked, "a flood of names does not make it look through the roster for each"
    now[0] += 1.0
    roster.update(state_of("in-time"))
    assert "worker" in roster


def test_an_enrolled_fleet_replaces_nobody_and_bytes_are_bounded_too(store) -> None:
    roster = DeviceRegistry(store, lambda: 1.0, bounds=RosterBounds(2, 10**6))
    roster.update(state_of("a"))
    roster.update(state_of("b"))
    with pytest.raises(Refused, match="2 devices and"):
        roster.update(state_of("c"))
    roster.update(state_of("a", windows=5))
    small = DeviceRegistry(store, lambda: 1.0, bounds=RosterBounds(100, 6000))
    small.update(large("a"))
    with pytest.raises(Refused):
        small.update(large("b"))
    small.update(state_of("a"))
    small.update(large("b"))
    assert roster_bounds(enrolled=True).most == 100_000
    assert roster_bounds(enrolled=False, most=10_000).most == 10_000


async def test_names_that_gave_way_leave_no_row(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), devices={"most": 3}) as made:
        await made.online(*(f"d{n}" for n in range(9)))
        made.app.storage.ledger.save()
        assert len(made.app.storage.store.rows(sa.select(schema.devices))) == 3
        assert made.app.forgetting.forgotten == 6


async def test_devices_that_are_away_for_long_are_forgotten(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), devices={"forget_days": 1.0}) as made:
        await made.online("here", "gone")
        await made.give("gone", Kind.STATE, messages.encode(State(status="offline", device="gone")))
        assert made.app.roster.stale(1.0) == []
        made.app.roster._wall = lambda: made.app.clock.wall() + DAY_S + 1
        made.app.forgetting._forget_stale()
        made.app.storage.ledger.save()
        rows = made.app.storage.store.rows(sa.select(schema.devices))
        assert [row["device"] for row in rows] == ["here"], "who is online is not forgotten"


async def test_the_operator_forgets_a_device_of_a_running_and_of_a_stopped_coordinator(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(device_cli, "read_settings", lambda _file, _task: settings_for(tmp_path, 1))
    monkeypatch.setattr(device_cli, "run_as_owner", lambda _folder: contextlib.nullcontext())

    def forget(*words: str):
        return CliRunner().invoke(device_cli.app, ["forget", "-c", "x.toml", *words])

    async with bench(tmp_path, tiny_task(min_devices=3)) as made:
        await made.online("a", "b", "c")
        for device in ("a", "b"):
            await made.give(device, Kind.STATE, messages.encode(State(status="offline", device=device)))
        refused = forget("c")
        assert isinstance(refused.exception, Transient)  # status 75: it may be offline later
        assert "c is online" in str(refused.exception)
        assert isinstance(forget("nobody").exception, Refused)
        assert "within seconds" in forget("a").stdout
        assert (tmp_path / "coordinator" / FOLDER / "a").exists()
        assert "within seconds" in forget("c", "--force").stdout
        await made.until(lambda: made.app.roster.names() == ("b",))
    done = forget("b", "--format", "json")
    assert json.loads(done.stdout) == {"device": "b", "by": "command"}
    with Database(tmp_path / "coordinator" / DATABASE, read_only=True) as store:
        assert store.rows(sa.select(schema.devices)) == []


async def test_a_request_that_cannot_be_read_or_is_being_written_does_not_end_the_coordinator(
    tmp_path, monkeypatch
) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a")
        folder = tmp_path / "coordinator" / FOLDER
        folder.mkdir()
        half = folder / ".tmp-0123456789ab"
        half.write_bytes(b"")
        (folder / "a").write_bytes(b"force")
        failing = iter([Transient("the disk fails")])

        def remove_once(file: Path) -> None:
            for error in failing:
                raise error
            file.unlink()

        monkeypatch.setattr("coordinator.fleet.device_removal.remove", remove_once)
        with capture_logs() as lines:
            assert made.app.forgetting._asked() == []
        assert [line["event"] for line in lines] == ["forget_not_read"]
        assert made.app.forgetting._asked() == [("a", True)], "the next look finds it"
        assert half.exists(), "a command is about to give it its name"


def test_withdrawn_updates_of_names_that_never_come_back_are_bounded(tmp_path, store, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.storage.update_journal.MAX_WITHDRAWN_OF_ALL", 4)
    journal, empty = Journal(store, tmp_path / "updates"), {"size": 1, "header": {}, "lost": "", "blobs": []}

    def withdraw(device: str, wall: float) -> None:
        given = {"round": 1, "device": device, "digest": device * 32, "wall": wall, "file": "", "at": 0}
        store.put(schema.updates, **given, **empty)
        journal.mark_lost(1, device, Refused(Reason.OUTLIER, "far off"), wall)

    for n in range(9):
        withdraw(f"m{n}", float(n))
    assert [len(journal.withdrawn(f"m{n}")) for n in range(9)] == [0] * 6 + [1] * 3, "the newest"


async def test_who_delivered_stays_when_names_are_made_up(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1), devices={"most": 2}) as made:
        await made.online("worker")
        await made.phase("collecting")
        await made.give("worker", Kind.UPDATE, frame(header("worker", 1, made.app.driver.state.manifest)))
        await made.phase("done")
        await made.online(*(f"x{n}" for n in range(5)))
        assert made.app.roster.names() == ("worker", "x4")


def test_a_large_database_is_not_copied_after_every_round() -> None:
    assert is_due(FREE_BYTES, 0.0)
    large_bytes = 60 * 2**20
    assert not is_due(large_bytes, 60.0)
    assert is_due(large_bytes, large_bytes / BYTES_A_SECOND)
