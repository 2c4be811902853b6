"""What is written of a large fleet: no line, row, announcement or answer grows with it."""

import json

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.cli.main import app as coordinator_app
from coordinator.cli.status import look
from coordinator.round_machine.events import (
    Checkpoint,
    Presence,
    RoundState,
    Rules,
    Selected,
)
from coordinator.status.history import LISTED, read
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import MOST_NAMED, count_in, listed, names_in, packed, unpacked
from coordinator.storage.location import DATABASE
from coordinator.storage.update_journal import Journal
from protocol import messages
from protocol.messages import ModalityState, RoundAnnouncement, State
from protocol.topics import Kind, broadcast_topic
from runtime import logs
from runtime.text import first_few
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, settings_for, tiny_task

MANY = 3000
NAMES = tuple(f"device-{n:06}" for n in range(MANY))


def fleet_of(folder, status: str = "online", names: tuple[str, ...] = NAMES) -> None:
    (folder / "coordinator").mkdir()
    with Database(folder / "coordinator" / DATABASE) as store, store.transaction() as connection:
        rows = []
        for name in names:
            state = State(
                status=status,
                device=name,
                roles=("train",),
                modalities={"acc": ModalityState(windows=(9, 0))},
                windows=9,
            )
            rows.append({"device": name, "state": state.model_dump(mode="json"), "wall": 1.0})
        connection.execute(schema.devices.insert(), rows)


def size(table: sa.Table, column: str):
    return sa.func.length(sa.cast(table.c[column], sa.LargeBinary))


async def test_a_round_of_thousands_leaves_bounded_lines_rows_and_words(tmp_path, monkeypatch) -> None:
    fleet_of(tmp_path)
    with capture_logs() as lines:
        async with bench(tmp_path, tiny_task(deadline_s=3600.0)) as made:
            await made.phase("collecting")
            state = made.app.driver.state
            assert len(state.selected) == MANY
            topic = broadcast_topic(FLEET, Kind.ROUND)

            def said() -> list[bytes]:
                return [p for t, p, _ in made.link.sent if t == topic and b'"collecting"' in p]

            payload = (await made.until(said))[-1]
            announced = messages.decode(payload, RoundAnnouncement)
            assert (announced.selected_count, len(announced.selected)) == (MANY, 64)
            assert len(payload) < 8_000
            store = made.app.storage.store
            table = schema.attempts
            [row] = store.rows(sa.select(size(table, "selected").label("a"), size(table, "why").label("b")))
            assert row["a"] + row["b"] < 40_000
            assert (
                max(r["n"] for r in store.rows(sa.select(size(schema.events, "event").label("n")))) < 40_000
            )
            events = [event for _, event in store.journal()]
            assert [e.devices for e in events if isinstance(e, Selected)] == [NAMES], (
                "the whole of it comes back"
            )
            found, waits = look(store, made.app.settings, made.app.clock.wall())
            assert len(json.dumps(found) + json.dumps([w.as_json(0.0) for w in waits])) < 60_000
    [selected] = [line for line in lines if line["event"] == "selected"]
    assert (selected["count"], len(selected["why"])) == (MANY, 8)
    assert max(len(json.dumps(line, default=str)) for line in lines) < 2_500
    monkeypatch.setattr("coordinator.cli.main.read_settings", lambda _file, _task: settings_for(tmp_path, 1))
    shown = CliRunner().invoke(coordinator_app, ["history", "-c", "x.toml", "--format", "json"])
    told = json.loads(shown.stdout)
    assert told["left_out"] == {"devices": MANY - LISTED}
    [attempt] = told["rounds"][0]["attempts"]
    assert (attempt["selected_count"], len(attempt["selected"])) == (MANY, MOST_NAMED)
    assert len(read(tmp_path / "coordinator")["devices"]) == MANY, "the whole, for programs of ours"
    table = CliRunner().invoke(coordinator_app, ["history", "-c", "x.toml"]).stdout
    assert f"devices: {MANY - LISTED} more" in table


@pytest.mark.parametrize(
    ("known", "selection", "most"),
    [(11_000, "uniform", 10_000), (1_000, "uniform", None), (1_000, "coverage", 900)],
)
async def test_ten_thousand_devices_are_selected_by_one_message(tmp_path, known, selection, most) -> None:
    names = tuple(f"device-{n:06}" for n in range(known))
    fleet_of(tmp_path, names=names)
    task = tiny_task(deadline_s=3600.0, selection=selection, devices_per_round=most)
    async with bench(tmp_path, task) as made:
        await made.phase("collecting")
        await made.until(made.link.offers)
        assert not [topic for topic, _, _ in made.link.sent if "/d/" in topic], "nothing to single devices"
        (offer,) = made.link.offers()
        asked = {name for name in names if offer.asks(name)}
        assert asked == set(made.app.driver.state.selected)
        assert len(asked) == (most or len(names))
        assert 0.7 * len(asked) / 200 < offer.answer_within_s <= len(asked) / 200, "200 a second"
        payload = next(p for t, p, _ in made.link.sent if t == broadcast_topic(FLEET, Kind.OFFER) and p)
        assert len(payload) < (6_000 if selection == "coverage" else 500)


def test_the_history_shows_the_last_rounds(tmp_path) -> None:
    with Database(tmp_path / DATABASE) as store:
        state = RoundState(phase="waiting_for_devices", round=41, version=40)
        store.append(Checkpoint(state=state, rules=Rules(rounds=50, deadline_s=1.0)), 1.0)
        with store.transaction() as connection:
            rows = [
                {"round": n, "attempt": 1, "opened_wall": 1.0, "selected": ["a"], "why": {"a": "x"}}
                for n in range(1, 41)
            ]
            connection.execute(schema.attempts.insert(), [row | {"outcome": "quorum"} for row in rows])
    assert [row["round"] for row in read(tmp_path, last=5)["rounds"]] == [37, 38, 39, 40]
    assert len(read(tmp_path)["rounds"]) == 40


def test_what_versions_say_at_length_leaves_by_bytes_too(tmp_path) -> None:
    """Who delivered, the confusion of classes, metrics by person: megabytes a version, in a large fleet."""
    with Database(tmp_path / DATABASE) as store:
        row = {"manifest": "m", "parent": None, "wall": 1.0, "metrics": {"accuracy": 0.5}, "trouble": ""}
        row |= {"bytes_up": 0, "bytes_down": 0, "devices": list(NAMES), "confusion": [[7] * 100] * 100}
        by = {"group": {f"p{n}": {"accuracy": 0.5} for n in range(128)}}
        with store.transaction() as connection:
            connection.execute(schema.versions.insert(), [row | {"version": n} for n in range(31)])
            connection.execute(schema.parts.insert(), [{"version": n, "by": by} for n in range(31)])
        assert store.used_bytes() > 2_000_000
        Journal(store, tmp_path / "updates").forget_headers(30, 100_000, 1_000_000)
        assert store.used_bytes() <= 1_000_000
        versions = read(tmp_path)["versions"]
        assert [len(one["metrics"]) for one in versions] == [1] * 31, "the course of the metrics stays"
        assert (versions[30]["devices"], versions[30]["by"]) == (list(NAMES), by)
        assert (versions[0]["devices"], versions[0]["by"]) == ([], {})


def test_old_rounds_leave_by_bytes_and_old_events_too(tmp_path) -> None:
    with Database(tmp_path / DATABASE) as store:
        with store.transaction() as connection:
            wide = {"a": "w" * 20_000}
            rows = [
                {"round": n, "attempt": 1, "opened_wall": 1.0, "selected": ["a"], "why": wide, "outcome": ""}
                for n in range(1, 101)
            ]
            connection.execute(schema.attempts.insert(), rows)
        journal = Journal(store, tmp_path / "updates")
        assert store.used_bytes() > 2_000_000
        journal.forget_headers(100, 100_000, 1_000_000)
        assert store.used_bytes() <= 1_000_000
        left = [row["round"] for row in store.rows(sa.select(schema.attempts.c.round))]
        assert left[-1] == 100, "the open round stays, whatever it takes"
        journal.forget_headers(100, 100_000, 1)
        assert [row["round"] for row in store.rows(sa.select(schema.attempts.c.round))] == [100]
        rules, state = Rules(rounds=1, deadline_s=1.0), RoundState(trouble="t" * 3000)
        for n in range(450):
            store.append(Checkpoint(state=state.model_copy(update={"round": n}), rules=rules), 1.0)
        kept = store.rows(sa.select(sa.func.sum(size(schema.events, "event")).label("n")))[0]["n"]
        assert kept < 1_100_000
        assert store.journal()[-1][1].state.round == 449


async def test_a_phase_that_goes_on_for_long_begins_its_journal_anew(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.rounds.driver._EVENTS", 5)
    async with bench(tmp_path, tiny_task(min_devices=2, deadline_s=3600.0)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        for n in range(12):
            await made.app.driver.post(Presence(here=bool(n % 2)))
        assert len(made.app.storage.store.journal()) <= 6
        assert made.app.driver.state.selected == {"a", "b"}
        assert made.app.storage.store.journal()[0][1].state.selected == {"a", "b"}


def test_values_are_packed_and_come_back_and_rotten_ones_say_so() -> None:
    assert packed(["a"]) == ["a"]
    small = packed(list(NAMES))
    assert len(json.dumps(small)) < 16_000
    assert unpacked(small) == list(NAMES)
    with pytest.raises(ValueError, match="cannot be read"):
        unpacked({"zlib": "AAAA"})
    with pytest.raises(ValueError, match="cut off"):
        unpacked({"zlib": small["zlib"][:400]})
    whole, part = listed(NAMES, whole=True), listed(NAMES, whole=False)
    assert (names_in(whole), count_in(whole)) == (NAMES, MANY)
    assert (len(names_in(part)), count_in(part)) == (MOST_NAMED, MANY)
    assert names_in(whole | {"zlib": "AAAA"}) == NAMES[:MOST_NAMED]
    assert (names_in(["a"]), count_in(["a"]), names_in(None)) == (("a",), 1, ())
    assert first_few(NAMES) == ", ".join(NAMES[:8]) + " and 2992 more"


def test_no_line_of_the_log_grows_whoever_writes_it() -> None:
    line = logs.bounded(
        {"why": dict.fromkeys(NAMES, "w" * 5000), "names": NAMES, "text": "x" * 10**6, "n": 1}
    )
    assert len(json.dumps(line)) < 64 * 2_200 + 5_000
    assert line["n"] == 1
    assert line["why"]["left_out"] == MANY - logs.MOST_ITEMS
    assert line["names"][-1] == f"and {MANY - logs.MOST_ITEMS} more"
    assert len(line["text"]) < 2 * logs.MOST_TEXT
