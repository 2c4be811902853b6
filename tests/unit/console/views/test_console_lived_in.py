"""One device, admission, refusals and the audit log, over the tables of a fleet that has lived."""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.tables import audit
from console.tables.connection import TablesConnection
from console.tables.device_detail import read_detail
from coordinator.audit.log import AuditLog
from coordinator.identity.store import IdentityStore
from coordinator.storage import schema
from coordinator.telemetry.history import added, flat
from protocol.telemetry import Telemetry
from tests.support.console.fleet_tables import (
    ConsoleBench,
    console_of,
    made_settings,
    state_of,
    statements,
    store_fleet,
)
from tests.support.console.lived_in import ANNA, DAY_S, MARKUP, lived_in

PAGES = ("/devices", "/devices/barn-1", "/devices/barn-7", "/enrolment", "/refusals", "/audit")


def live_links(page: str) -> Iterator[str]:
    """Addresses of this console in a page."""
    for link in re.findall(r'(?:href|hx-get)="(/[^"]*)"', page):
        if not link.startswith(("/static", "/sign-in")):
            yield link.replace("&amp;", "&")


@pytest.mark.both_engines
async def test_console_one_device_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    settings = await lived_in(tmp_path)
    async with console_of(settings) as console:
        found = await console.json("/devices/barn-1")
        assert found["device"]["standing"] == ""
        assert found["classes"] == ["a", "b"]
        assert found["windows"] == {"acc": [1, 1], "gyro": [1, 1]}
        assert [(one["round"], one["outcome"]) for one in found["rounds"]] == [
            (3, "selected; no update yet"),
            (2, "folded into version 2"),
            (1, "folded into version 1"),
        ]
        assert found["rounds"][1]["metrics"] == {"loss": 0.25}
        assert found["rounds"][0]["why"] == "every eligible device takes part"
        assert found["metrics"]["temperature_c"] > 40
        columns = found["history"]
        assert len(columns["at"]) == len(columns["quality/acc"]) > 10
        assert None in columns["quality/gyro"], "a device that did not report it has a gap"
        assert found["certificate"]["status"] == "active"
        refused = await console.json("/devices/barn-8")
        assert [(one["reason"], one["count"]) for one in refused["refusals"]] == [("wrong_tensors", 1)]
        assert [one["round"] for one in refused["rounds"]][-1] == 1
        assert "sent no update" in refused["rounds"][-1]["outcome"]
        barred = await console.json("/devices/barn-7")
        assert barred["device"]["standing"] == "quarantined"
        assert barred["quarantine"]["until"] - barred["quarantine"]["since"] == pytest.approx(3600, abs=1)
        asks = await console.json("/devices/yard-1")
        assert (asks["device"]["status"], asks["device"]["standing"]) == ("never reported", "pending")
        page = (await console.get("/devices/barn-1")).text
        plots = [json.loads(one.replace("&#34;", '"')) for one in re.findall(r"data-plot='([^']*)'", page)]
        assert plots[0]["series"][0]["name"] == "acc"
        assert len(plots[0]["x"]) == len(plots[0]["series"][0]["values"])
        assert len(plots) >= 8
        assert 'href="/rounds/3"' in page


@pytest.mark.both_engines
async def test_console_a_model_that_drifts_is_shown_with_its_limit(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(1, "still"), state_of(2, "moved")])
    with settings.location.database() as store:
        for device, drift in (("still", [0.4, None, 1.0]), ("moved", [0.4, None, 2.5])):
            history: dict[str, object] = {}
            for number, value in enumerate(drift):
                report = Telemetry(uptime_s=1.0, drift=value)
                values = flat(report, frozenset())
                history = added(history, 1.7e9 + 60 * number, values)
            store.put(schema.telemetry, device=device, wall=1.7e9, report=values)
            store.put(schema.telemetry_history, device=device, history=history)
    async with console_of(settings) as console:
        for device, drifts in (("still", False), ("moved", True)):
            page = (await console.get(f"/devices/{device}")).text
            plots = [
                json.loads(one.replace("&#34;", '"')) for one in re.findall(r"data-plot='([^']*)'", page)
            ]
            (drift_plot,) = [one for one in plots if one["series"][0]["name"] == "distance over its limit"]
            assert drift_plot["series"][0]["values"] == [0.4, None, 2.5 if drifts else 1.0]
            assert drift_plot["series"][1]["values"] == [1.0] * 3, "the limit"
            assert ("Its model drifts" in page) == drifts


@pytest.mark.both_engines
async def test_console_every_page_is_escaped_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    settings = await lived_in(tmp_path)
    async with console_of(settings) as console:
        await console.admission.checks.again()
        for path in PAGES:
            page = await console.get(path)
            assert page.status_code == 200, path
            assert MARKUP not in page.text, path
            ids = re.findall(r' id="([^"]*)"', page.text)
            assert len(ids) == len(set(ids)), path
            assert 'style="' not in page.text, "the policy allows none"
            assert not re.search(r" on\w+=", page.text), path
            for link in {*live_links(page.text)} - {"/", "/events"}:
                answer = await console.get(link)
                assert answer.status_code in {200, 303}, f"{link} of {path}"
        assert "&lt;script&gt;" in (await console.get("/refusals")).text
        assert "&lt;script&gt;" in (await console.get("/audit")).text


@pytest.mark.both_engines
async def test_console_who_asks_who_is_admitted_and_which_certificates_end(tmp_path: Path) -> None:
    settings = await lived_in(tmp_path)

    async def names(console: ConsoleBench, query: str) -> list[str]:
        return [one["device"] for one in (await console.json(f"/enrolment{query}"))["devices"]]

    async with console_of(settings) as console:
        everything = await console.json("/enrolment")
        assert (everything["authority"], everything["total"], everything["open_invites"]) == (True, 6, 2)
        assert {one["device"] for one in everything["invites"]} == {"barn-9", None}
        assert await names(console, "?show=asks") == ["yard-1", "yard-2"]
        assert await names(console, "?show=admitted") == ["barn-1", "barn-2", "barn-3"]
        assert await names(console, "?show=revoked") == ["barn-4"]
        assert await names(console, "?show=ends_soon") == ["barn-2"]
        assert await names(console, "?q=99999") == ["yard-2"], "a key is found by its begin"
        until = await names(console, "?sort=until&order=desc&show=admitted")
        assert until == ["barn-1", "barn-3", "barn-2"]
        before = console.views.fleet.reading.revision
        with IdentityStore(settings.location) as book:
            book.approve("yard-1")
        await console.views.fleet.again()
        assert console.views.fleet.reading.revision != before, "viewers are told"
        assert await names(console, "?show=asks") == ["yard-2"]
        certificates = settings.identity.device_days * DAY_S
        assert everything["devices"][0]["until"] < certificates + everything["read_wall"]


@pytest.mark.both_engines
async def test_console_refusals_and_quarantine_until_it_is_released(tmp_path: Path) -> None:
    settings = await lived_in(tmp_path)
    async with console_of(settings) as console:
        found = await console.json("/refusals")
        assert {(one["device"], one["reason"]) for one in found["refusals"]} == {
            ("barn-8", "wrong_tensors"),
            ("barn-7", "non_finite"),
        }
        (update,) = found["updates"]
        assert (update["device"], update["round"], update["reason"]) == ("barn-8", 1, "wrong_tensors")
        assert update["wall"] == pytest.approx(found["read_wall"], abs=300)
        assert [one["device"] for one in (await console.json("/refusals?reason=non_finite"))["refusals"]] == [
            "barn-7"
        ]
        assert (await console.json("/refusals?q=barn-8"))["total"] == 1
        (held,) = (await console.json("/quarantine"))["devices"]
        assert (held["device"], held["times"], held["reason"]) == ("barn-7", 1, "non_finite")
        with IdentityStore(settings.location) as book:
            book.approve("barn-7", unknown=True)
        await console.views.fleet.again()
        assert (await console.json("/quarantine"))["devices"] == []
        assert (await console.json("/devices/barn-7"))["device"]["standing"] == ""


@pytest.mark.both_engines
async def test_console_audit_rows_as_they_come_and_their_filters(tmp_path: Path) -> None:
    settings = await lived_in(tmp_path)
    async with console_of(settings) as console:
        found = await console.json("/audit")
        assert [one["seq"] for one in found["rows"]] == list(range(10, 0, -1)), "the newest first"
        assert (found["rows"][0]["who"], found["rows"][0]["of"]) == ("root (sudo of ben)", 9)
        assert (await console.json("/audit?person=ANNA"))["total"] == 8
        assert (await console.json("/audit?action=device"))["total"] == 8
        assert (await console.json("/audit?action=device.revoke"))["total"] == 2
        assert (await console.json("/audit?device=barn-7&person=root"))["total"] == 2
        assert (await console.json("/audit?q=nothing+like+it"))["total"] == 0
        with AuditLog(settings.location) as log:
            log.append(ANNA, "device.forget", "barn-2", "done")
        await console.admission.audit.again()
        assert (await console.json("/audit"))["rows"][0]["action"] == "device.forget"
        assert (await console.json("/audit"))["known"] == 11


async def test_console_the_chain_is_checked_on_request_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = await lived_in(tmp_path)
    async with console_of(settings) as console:
        await console.admission.checks.again()
        sound = await console.json("/audit/check")
        assert (sound["sound"], sound["whole"], sound["head"][:3]) == (True, True, "10:")
        with sqlite3.connect(settings.state_dir / "operators.sqlite3") as tables:
            tables.execute("UPDATE audit SET doc = replace(doc, 'anna', 'eve') WHERE seq = 3")
        again = await console.json("/audit/check")
        assert again["checked_wall"] == sound["checked_wall"], "nobody makes it check without a pause"
        for _ in range(3):
            assert (await console.get("/audit")).status_code == 200
        assert console.admission.checks.reading.wall == sound["checked_wall"], "a viewer checks nothing"
        await console.admission.checks.again()
        broken = await console.json("/audit/check")
        assert (broken["sound"], broken["row"]) == (False, 3)
        page = (await console.get("/audit")).text
        assert "The log was changed" in page
        assert "row 3 is not what its digest was made of" in page
        await console.admission.audit.again()
        assert (await console.json("/audit"))["known"] == 10, "rows are shown all the same"
        monkeypatch.setattr(audit, "MOST_CHECKED", 2)
        await console.admission.checks.again()
        part = await console.json("/audit/check")
        assert (part["sound"], part["whole"], part["head"][:2]) == (True, False, "2:")


async def test_console_a_cut_log_and_a_row_that_is_none(tmp_path: Path) -> None:
    settings = await lived_in(tmp_path)
    file = settings.state_dir / "operators.sqlite3"
    async with console_of(settings) as console:
        assert (await console.json("/audit"))["known"] == 10
        with sqlite3.connect(file) as tables:
            tables.execute("DELETE FROM audit WHERE seq > 8")
        await console.admission.audit.again()
        await console.admission.checks.again()
        assert (await console.json("/audit"))["known"] == 8
        assert "rows 9 to 10 are missing" in (await console.json("/audit/check"))["why"]
        with sqlite3.connect(file) as tables:
            tables.execute("UPDATE audit SET doc = 'nonsense' WHERE seq = 8")
        await console.admission.audit.again()
        page = (await console.get("/audit")).text
        assert "a row of the audit log cannot be read" in page
        assert "What follows is how it stood before" in page


async def test_console_pages_open_no_table_for_writing(tmp_path: Path) -> None:
    """A console beside a coordinator that never ran makes no file; and one beside it changes none."""
    settings = made_settings(tmp_path)
    async with console_of(settings) as console:
        for path in PAGES:
            await console.get(path)
        await console.get("/audit/check")
    assert [one.name for one in settings.state_dir.iterdir()] == []
    store_fleet(settings, [state_of(1, "barn-1")])
    before = {one.name for one in settings.state_dir.iterdir()}
    async with console_of(settings) as console:
        for path in PAGES:
            await console.get(path)
    extra = {one.name for one in settings.state_dir.iterdir()} - before
    assert {name.rpartition("-")[2] for name in extra} <= {"wal", "shm"}


async def test_console_a_device_costs_the_same_in_a_long_history(tmp_path: Path) -> None:
    """Its rounds are looked up by key: neither rounds nor devices add statements, and no table is scanned."""
    settings = await lived_in(tmp_path)
    with settings.location.database() as store:
        (row,) = [
            one
            for one in store.rows(schema.updates.select())
            if one["device"] == "barn-1" and one["round"] == 1
        ]
        many = [{**row, "device": f"d{number}", "round": at} for number in range(50) for at in range(3, 63)]
        store.put_all(schema.updates, many)
        store.put(schema.updates, **{**row, "round": 40, "lost": MARKUP})
        store.put(schema.updates, **{**row, "round": 2, "lost": "old"})
    connection = TablesConnection(settings.location)
    try:
        connection.read(lambda store: read_detail(store, "barn-1"))
        asked = statements(connection)
        connection.read(lambda store: read_detail(store, "barn-1"))
        assert 5 < len(asked) < 15
        plans = connection.read(
            lambda store: [
                str(plan[3])
                for words, values in list(asked)
                for plan in store.engine.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {words}", values)
            ]
        )
    finally:
        connection.close()
    assert len(plans) > 5
    assert not [line for line in plans if "SCAN" in line], plans
    async with console_of(settings) as console:
        found = (await console.json("/devices/barn-1"))["rounds"]
        assert [one["round"] for one in found] == [40], "rounds beyond the newest 50 are not looked at"
        assert found[0]["outcome"].startswith("accepted, but not folded")
        assert MARKUP not in (await console.get("/devices/barn-1")).text
