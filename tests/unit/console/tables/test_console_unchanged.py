"""While nothing is written, nothing is read; what changes with time, or by another process, is read."""

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from console.tables import fleet_source as fleet_module
from console.tables import watch as watch_module
from console.tables.connection import TablesConnection
from console.tables.fleet_source import FleetSource
from coordinator.actions import rounds
from coordinator.admission.quarantine import OffenceRecord
from coordinator.audit.chain import Person
from coordinator.identity.store import IdentityStore
from coordinator.rollout.model import Begun
from coordinator.rollout.store import RolloutStore
from coordinator.round_machine.events import RoundPhase
from coordinator.storage import schema
from tests.support.console.fleet_tables import made_settings, state_of, statements, store_fleet, store_states
from tests.support.console.history import NOW, History, settings_in
from tests.support.console.serving import Served, served

pytestmark = pytest.mark.both_engines
_FEW = 4
"""Statements that ask whether something was written, with those of a transaction."""


async def asked(one: Served) -> int:
    before = one.statements
    await one.watch.read()
    return one.statements - before


async def test_console_a_long_reading_of_the_status_delays_no_other_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_MARKED_S", 0.0)
    monkeypatch.setattr(watch_module, "_COUNTED_S", 1e9)
    monkeypatch.setattr(watch_module, "_STATUS_S", 1e9)
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.stands(RoundPhase.WAITING, 1, 0)
        async with served(settings) as one:
            await one.watch.read()
            first = one.watch.picture
            history.opens(1, ["a", "b"])
            history.stands(RoundPhase.COLLECTING, 1, 0, selected=("a", "b"))
            await one.watch.read()
            assert one.watch.picture.revisions["rounds"] != first.revisions["rounds"]
            assert one.watch.picture.status["phase"] == first.status["phase"], "read again after a pause"


async def test_console_status_is_read_when_something_was_written_and_not_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_MARKED_S", 0.0)
    monkeypatch.setattr(watch_module, "_COUNTED_S", 1e9)
    monkeypatch.setattr(watch_module, "_STATUS_S", 0.0)
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.stands(RoundPhase.WAITING, 1, 0)
        async with served(settings) as one:
            await one.watch.read()
            first = one.watch.picture
            assert await asked(one) <= _FEW
            assert one.watch.picture.revisions == first.revisions
            assert one.watch.picture.wall > first.wall, "as of now"

            history.opens(1, ["a", "b"])
            history.stands(RoundPhase.COLLECTING, 1, 0, selected=("a", "b"))
            assert await asked(one) > _FEW
            opened = one.watch.picture
            assert opened.status["phase"] == "collecting"
            assert opened.revisions["rounds"] != first.revisions["rounds"]
            assert await asked(one) <= _FEW

            rounds.hold(settings, Person("ann", "operator", "test"))
            await one.watch.read()
            assert one.watch.picture.status["rounds_ordered"] == "held", "tables of other writers"
            with RolloutStore(settings.location) as book:
                book.play(Begun(mode="manual"), NOW)
            await one.watch.read()
            assert one.watch.picture.revisions["rollouts"] != opened.revisions["rollouts"]
            assert await asked(one) <= _FEW

            assert one.watch.picture.status["running"]
            history.store.close()  # the coordinator ends, and writes nothing about it
            async with asyncio.timeout(20):  # PostgreSQL ends a closed session a moment later
                while one.watch.picture.status["running"]:
                    await one.watch.read()

            monkeypatch.setattr(watch_module, "_COUNTED_S", 0.0)
            assert await asked(one) > _FEW, "some of the status changes with time alone"


async def test_console_marks_that_were_not_due_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.stands(RoundPhase.WAITING, 1, 0)
        async with served(settings) as one:
            monkeypatch.setattr(watch_module, "_COUNTED_S", 1e9)
            monkeypatch.setattr(watch_module, "_MARKED_S", 1e9)
            before = one.watch.picture.revisions["rounds"]
            history.opens(1, ["a"])
            await one.watch.read()
            assert one.watch.picture.revisions["rounds"] == before, "compared a moment ago"
            monkeypatch.setattr(watch_module, "_MARKED_S", 0.0)
            await one.watch.read()
            assert one.watch.picture.revisions["rounds"] != before


def test_console_fleet_is_read_when_something_was_written_or_ends_and_not_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(30)])
    tables = TablesConnection(settings.location)
    source = FleetSource(settings.location, tables)
    first, revision = source.read()
    made = statements(tables)
    assert source.read() == (first, revision)
    assert len(made) <= _FEW
    with settings.location.database() as store:
        store_states(store, [state_of(0, status="offline")])
    del made[:]
    second, changed = source.read()
    assert changed != revision
    assert second.by_name["device-00000"].report.status == "offline"
    assert len(made) > _FEW

    until = time.time() + 3600
    record = OffenceRecord(level=1, since=time.time() - 60, until=until, reason="malformed")
    with settings.location.database() as store:
        store.put(schema.standing, device="device-00001", record=json.dumps(asdict(record)))
    assert source.read()[0].by_name["device-00001"].standing == "quarantined"
    del made[:]
    source.read()
    assert len(made) <= _FEW
    monkeypatch.setattr(fleet_module, "time", SimpleNamespace(time=lambda: until + 1))
    assert source.read()[0].by_name["device-00001"].standing == "", "it ended, and nothing was written"

    with IdentityStore(settings.location) as identities:
        identities.revoke("device-00002", unknown=True)
    assert source.read()[0].by_name["device-00002"].standing == "revoked", "tables of another writer"
    tables.close()
