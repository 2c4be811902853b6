"""Marks change with what a page shows, on both engines, and a reading is made once for all who ask."""

import asyncio

import pytest

from console.tables.connection import TablesConnection
from console.tables.marks import MARKS
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from coordinator.diagnosis import device_logs
from coordinator.rollout.model import Begun, Create
from coordinator.rollout.store import RolloutStore
from coordinator.round_machine.events import RoundPhase
from coordinator.storage.database import Database
from protocol.errors import Reason, Refused, Transient
from runtime.web.events import EventStream
from tests.support.console.history import NOW, History, settings_in
from tests.support.coordinator.rollouts import plan, release


@pytest.mark.both_engines
async def test_console_marks_change_with_what_their_pages_show_and_with_nothing_else(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:

        def marks() -> dict[str, str]:
            with history.store.snapshot():
                return {name: repr(mark(history.store, settings)) for name, mark in MARKS.items()}

        def changed(before: dict[str, str]) -> set[str]:
            after = marks()
            return {name for name in after if after[name] != before[name]}

        empty = marks()
        history.opens(1, ["a", "b"])
        assert changed(empty) == {"rounds"}
        opened = marks()
        history.stands(RoundPhase.COLLECTING, 1, 0, selected=("a", "b"))
        assert changed(opened) == {"rounds"}
        stood = marks()
        history.closes(1)
        assert changed(stood) == {"rounds"}
        closed = marks()
        history.makes(1, ["a"], evaluated=False)
        made = marks()
        assert changed(closed) == {"versions"}
        history.evaluates(1)
        assert changed(made) == {"versions"}
        evaluated = marks()
        await history.exports(1, b"bundle")
        assert changed(evaluated) == {"versions"}
        exported = marks()
        with RolloutStore(settings.location) as book:
            book.play(Begun(mode="manual"), NOW)
            begun = marks()
            assert changed(exported) == {"rollouts"}
            book.play(Create(release=release(1), plan=plan()), NOW)
            assert changed(begun) == {"rollouts"}
        created = marks()
        device_logs.ask(settings.location, "a", NOW)
        assert changed(created) == {"device-logs"}
        assert marks() == marks()


class Source:
    def __init__(self) -> None:
        self.reads = 0
        self.fails: Exception | None = None

    def __call__(self, _store: Database) -> int:
        self.reads += 1
        if self.fails is not None:
            raise self.fails
        return self.reads


async def test_console_readings_are_made_once_for_each_revision(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.stands(RoundPhase.WAITING, 1, 0)
        tables = TablesConnection(settings.location)
        watch = TableWatch(settings, tables, EventStream(), MARKS)
        readings, source = SharedReadings(tables, watch), Source()
        await watch.read()
        asked = await asyncio.gather(*(readings.get("rounds", "list", source) for _ in range(50)))
        assert {one.require() for one in asked} == {1}
        assert (await readings.get("rounds", "another", source)).require() == 2
        assert (await readings.get("versions", "list", source)).require() == 3
        history.opens(1, ["a"])
        await watch.read(marked=True)
        assert (await readings.get("rounds", "list", source)).require() == 4
        assert (await readings.get("versions", "list", source)).require() == 3, "another subject"
        history.closes(1)
        await watch.read(marked=True)
        source.fails = Transient("the server is away")
        lost = await readings.get("rounds", "list", source)
        assert (lost.value, lost.trouble) == (4, "the server is away")
        with pytest.raises(Transient, match="away"):
            lost.require()
        source.fails = None
        assert (await readings.get("rounds", "list", source)).require() == 6, "it comes back by itself"
        source.fails = Refused(Reason.UNKNOWN_TASK, "no")
        with pytest.raises(Refused):
            await readings.get("rounds", "unknown", source)
        source.fails = None
        for n in range(200):
            await readings.get("rounds", n, source)
        assert readings.held <= 64
        tables.close()
