"""What is read as it changes is what a reading of everything gives; and only changes are read."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from console.tables import device_reports
from console.tables.connection import TablesConnection
from console.tables.device_reports import ChangedDevices, FollowedRegistry
from console.tables.fleet import FleetPicture
from console.tables.fleet_source import FleetSource
from coordinator.admission.quarantine import OffenceRecord
from coordinator.cli.status import look
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity.store import IdentityStore
from coordinator.storage import schema
from coordinator.storage.database import Database
from tests.support.console.fleet_tables import DIGEST, made_settings, state_of, store_fleet, store_states

_NAMES = 40


def shown(picture: FleetPicture) -> dict[str, Any]:
    return {
        "members": list(picture.members),
        "by name": list(picture.by_name.items()),
        "counts": (picture.statuses, picture.standings, picture.attention),
        "order": [one.name for one in picture.in_order("refusals", descending=True)],
        "rest": (picture.identities, list(picture.refusals), picture.quarantine, picture.task),
    }


def writes(settings: CoordinatorSettings, store: Database, dice: random.Random) -> list[Callable[[], None]]:
    """What a coordinator may write, each about a device by chance."""

    def name() -> str:
        return f"device-{dice.randrange(_NAMES):05d}"

    def reports() -> None:
        number = dice.randrange(_NAMES)
        store_states(store, [state_of(number, status=dice.choice(["online", "offline", "stopped"]))])

    def leaves() -> None:
        store.remove(schema.devices, device=name())

    def is_damaged() -> None:
        store.put(schema.devices, device=name(), state={"status": 3}, wall=time.time())

    def is_refused() -> None:
        store.count_refusals(name(), "malformed", dice.randrange(1, 9), "no update", time.time())

    def is_forgiven() -> None:
        with store.transaction() as connection:
            table = schema.refusals
            connection.execute(table.delete().where(table.c.device == name()))

    def misbehaves() -> None:
        now = time.time()
        record = OffenceRecord(level=1, since=now - 60, until=now + 3600, reason="malformed")
        store.put(schema.standing, device=name(), record=json.dumps(asdict(record)))

    def is_served() -> None:
        version = dice.randrange(3, 9)
        store.put(schema.exports, version=version, wall=time.time(), digest=DIGEST, size=9, metrics={})

    def is_revoked() -> None:
        with IdentityStore(settings.location) as identities:
            identities.revoke(name(), unknown=True)

    return [reports, reports, leaves, is_damaged, is_refused, is_forgiven, misbehaves, is_served, is_revoked]


@pytest.mark.both_engines
def test_console_fleet_read_change_by_change_is_the_fleet_read_as_a_whole(tmp_path: Path) -> None:
    settings, dice = made_settings(tmp_path), random.Random(7)
    store_fleet(settings, [state_of(number) for number in range(0, _NAMES, 2)])
    tables = TablesConnection(settings.location)
    source, registry = FleetSource(settings.location, tables), FollowedRegistry()
    with settings.location.database(alone=False) as store:
        kinds = writes(settings, store, dice)
        for step in range(25 if settings.location.schema is None else 6):  # a server takes connections
            for write in dice.sample(kinds, dice.randrange(1, 3)):
                write()
            whole = FleetSource(settings.location, tables).read()[0]
            assert shown(source.read()[0]) == shown(whole), step
            now = time.time()
            followed = tables.read(partial(look, settings=settings, now=now, registry=registry))
            assert followed == tables.read(partial(look, settings=settings, now=now)), step
    tables.close()


@pytest.mark.both_engines
def test_console_reads_the_row_that_changed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(device_reports, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(30)])
    table, changes = schema.devices, ChangedDevices()
    with settings.location.database() as store:

        def changed() -> set[str]:
            found = changes.read(store)
            return {row["device"] for row in found.rows()} | set(found.gone)

        assert len(changed()) == 30
        assert changed() == set()
        store_states(store, [state_of(3, status="offline")])
        assert changed() == {"device-00003"}
        with store.transaction() as connection:
            connection.execute(table.update().values(wall=1.0).where(table.c.device == "device-00004"))
        assert changed() == set(), "a time that is long ago"
        now[0] += 10
        assert changed() == {"device-00004"}, "all rows are compared now and then"
        store.remove(table, device="device-00005")
        assert changed() == {"device-00005"}, "their number is another one"
        with store.transaction() as connection:
            future = time.time() + 1e6
            connection.execute(table.update().values(wall=future).where(table.c.device == "device-00007"))
        assert changed() == {"device-00007"}
        store_states(store, [state_of(77)])
        assert changed() == {"device-00077"}, "after a time in the future"
        store.remove(table, device="device-00006")
        store_states(store, [state_of(78)])
        assert changed() == {"device-00006", "device-00078"}
        assert changed() == set()


@pytest.mark.both_engines
def test_console_what_cannot_be_read_once_is_read_as_a_whole_afterwards(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(10)])
    tables = TablesConnection(settings.location)
    source = FleetSource(settings.location, tables)
    source.read()
    with settings.location.database() as store:
        store_states(store, [state_of(3, status="stopped")])
        task = store.get_meta("task")
        store.put_meta({"task": "{"})
        for _ in range(2):
            with pytest.raises(ValueError, match="Invalid JSON"):
                source.read()
        store.put_meta({"task": str(task)})
    picture, _ = source.read()
    assert picture.by_name["device-00003"].report.status == "stopped"
    assert shown(picture) == shown(FleetSource(settings.location, tables).read()[0])
    tables.close()


def test_console_a_row_of_sqlite_that_is_no_json_is_one_device(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(3)])
    tables = TablesConnection(settings.location)
    source = FleetSource(settings.location, tables)
    with settings.location.database() as store, store.transaction() as connection:
        connection.execute(sa.text("UPDATE devices SET state = '{\"status' WHERE device = 'device-00001'"))
    members = source.read()[0].by_name
    assert [one.report.status for one in members.values()].count("unreadable") == 1
    assert members["device-00001"].report.status == "unreadable"
    tables.close()
