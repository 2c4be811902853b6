"""The list of devices over real tables: filter, sort, pages, bounds, hostile names, and many devices."""

import gzip
import re
from pathlib import Path

import pytest

from console.views.fleet import COLUMNS
from protocol.messages import ModalityState
from protocol.rollout import Hindrance
from tests.support.console.fleet_tables import (
    console_of,
    made_settings,
    state_of,
    statements,
    store_fleet,
    store_states,
)

MANY = 10_000
MOST_BYTES = 200_000


async def names(console, query: str = "") -> list[str]:
    return [one["device"] for one in (await console.json(f"/devices{query}"))["devices"]]


@pytest.mark.both_engines
async def test_console_devices_by_filter_and_order(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    given = [
        state_of(1, "barn-1", status="online", labels={"site": "barn"}, roles=("train",), model=None),
        state_of(2, "barn-2", status="offline", labels={"site": "barn"}, roles=("observe",), trial=None),
        state_of(3, "mill-1", status="online", labels=None, hindered=Hindrance(why="no ONNX Runtime")),
        state_of(4, "mill-2", modalities={}, status="stopped", labels={"site": "mill"}),
    ]
    store_fleet(settings, given)
    async with console_of(settings) as console:
        assert await names(console) == ["barn-1", "barn-2", "mill-1", "mill-2"]
        assert await names(console, "?order=desc") == ["mill-2", "mill-1", "barn-2", "barn-1"]
        assert await names(console, "?status=online") == ["barn-1", "mill-1"]
        assert await names(console, "?role=train") == ["barn-1", "mill-1"]
        assert await names(console, "?label=SITE:+barn") == ["barn-1", "barn-2"]
        assert await names(console, "?modality=gyro") == ["barn-1", "mill-1"]
        assert await names(console, "?q=onnx+RUNTIME") == ["mill-1"]
        assert await names(console, "?attention=1") == ["mill-1"]
        assert await names(console, "?status=online&q=barn") == ["barn-1"]
        assert await names(console, "?sort=quality") == ["mill-1", "barn-1", "barn-2", "mill-2"]
        last = await names(console, "?sort=quality&order=desc")
        assert last == ["barn-2", "barn-1", "mill-1", "mill-2"], "no value is last in both orders"
        for column, *_ in COLUMNS:
            assert len(await names(console, f"?sort={column}&order=desc")) == 4
        (one,) = (await console.json("/devices?q=barn-2"))["devices"]
        assert (one["status"], one["version"], one["roles"]) == ("offline", 2, ["observe"])
        assert one["modalities"]["acc"]["quality"] == 0.74
        bad = await console.get("/api/v1/devices?sort=secret")
        assert (bad.status_code, "sort" in bad.json()["error"]) == (400, True)


@pytest.mark.both_engines
async def test_console_devices_follow_what_the_coordinator_writes(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(30)])
    async with console_of(settings) as console:
        page = await console.get("/devices?status=online")
        shown = re.search(r'"x-lichen-shown": "(\w+)"', page.text)
        assert shown is not None
        before = console.views.fleet.reading
        await console.views.fleet.again()
        assert console.views.fleet.reading.value is before.value, "nothing changed: nothing is made anew"
        assert console.views.fleet.reading.revision == before.revision
        same = await console.get("/devices?status=online", **{"x-lichen-shown": shown[1]})
        assert (same.status_code, same.content) == (204, b"")
        with settings.location.database() as store:
            store_states(store, [state_of(0, status="offline"), state_of(99, "new", status="online")])
        await console.views.fleet.again()
        assert console.views.fleet.reading.revision != before.revision
        again = await console.get("/devices?status=online", **{"x-lichen-shown": shown[1]})
        assert again.status_code == 200
        found = await names(console, "?status=online")
        assert "new" in found
        assert "device-00000" not in found
        with settings.location.database() as store:
            store.engine.connection.exec_driver_sql("DELETE FROM devices WHERE device = 'new'")
            store.engine.connection.commit()
        await console.views.fleet.again()
        assert "new" not in await names(console)


@pytest.mark.long
async def test_console_ten_thousand_devices_are_a_small_page_and_no_query_of_their_own(
    tmp_path: Path,
) -> None:
    few, many = made_settings(tmp_path / "few"), made_settings(tmp_path / "many")
    store_fleet(few, [state_of(number) for number in range(10)])
    store_fleet(many, [state_of(number) for number in range(MANY)])
    counts = []
    for settings in (few, many):
        async with console_of(settings) as console:
            await console.views.fleet.again()
            asked = statements(console.views.whole)
            await console.views.fleet.again()
            assert len(asked) == 1, "nothing was written: only that is asked"
            with settings.location.database() as store:
                store_states(store, [state_of(0, status="offline")])
            del asked[:]
            await console.views.fleet.again()
            counts.append(len(asked))
            del asked[:]
            for query in (
                "",
                "?sort=quality&order=desc",
                "?q=barn&sort=labels",
                "?page=100",
                "?status=online",
            ):
                page = await console.get(f"/devices{query}")
                assert page.status_code == 200
                assert len(page.content) < MOST_BYTES, query
                assert page.text.count("<tr>") <= 101
            assert asked == [], "a viewer reads no table"
            if settings is many:
                assert f"{MANY:,}" in (await console.get("/devices")).text
                assert (await console.json("/devices?page=100"))["pages"] == 100
                assert len(await names(console, "?page=100")) == 100
                first = await console.get("/devices")
                assets = re.findall(r'(?:src|href)="(/static/[^"]+)"', first.text)
                loaded = [await console.get(path, **{"accept-encoding": "identity"}) for path in assets]
                whole = len(first.content) + sum(len(gzip.compress(one.content)) for one in loaded)
                assert whole < MOST_BYTES, "all that a first visit loads"
    assert 3 < counts[0] == counts[1] < 15


async def test_console_the_live_region_is_rendered_once_for_all_viewers(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(30)])
    async with console_of(settings) as console:
        page = (await console.get("/devices?sort=quality")).text
        asked = {"hx-request": "true", "hx-target": "live"}
        region = (await console.get("/devices?sort=quality", **asked)).text
        assert region.strip().startswith('<div id="live"')
        counted = re.compile(r"\d+ (?:s|min|h) ago")
        assert counted.sub("", region.strip()) in counted.sub("", page), "the same as in the page"
        assert "<nav" in page
        assert "<nav" not in region
        assert (await console.get("/devices?sort=quality", **asked)).text == region, "the same bytes"
        assert (await console.get("/devices?sort=labels", **asked)).text != region
        shown = re.search(r'"x-lichen-shown": "([^"]+)"', region)
        assert shown
        same = await console.get("/devices?sort=quality", **asked, **{"x-lichen-shown": shown[1]})
        assert same.status_code == 204
        with settings.location.database() as store:
            store_states(store, [state_of(5, labels={"site": "a new one"})])
        await console.views.fleet.again()
        assert "a new one" in (await console.get("/devices?sort=quality", **asked)).text


async def test_console_devices_that_say_too_much_stay_small_and_are_escaped(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    evil = "<img src=x onerror=alert(1)>\"'&" * 2
    parts = {f"m{number}-{'x' * 50}"[:56]: ModalityState(reasons=(evil[:64],) * 16) for number in range(16)}
    loud = [
        state_of(
            number,
            f"{number:03}" + "n" * 53,
            status="online",
            version=evil[:64],
            modalities=parts,
            labels={f"l{one}": evil[:64] for one in range(16)},
            hindered=Hindrance(why=("&'" * 120)[:240]),
            refuses="<script>" * 20,
        )
        for number in range(120)
    ]
    store_fleet(settings, loud)
    async with console_of(settings) as console:
        page = await console.get("/devices")
        assert page.status_code == 200
        assert "<img" not in page.text
        assert "<script>" not in page.text
        assert len(page.content) < 2 * MOST_BYTES, "even where every device does its worst"
        one = await console.get(f"/devices/{loud[0].device}")
        assert one.status_code == 200
        assert "<img" not in one.text
        assert "<script>" not in one.text
        assert (await console.get('/devices?q=<script>alert(1)</script>&label="><b>')).text.count(
            "<script>"
        ) == 0


async def test_console_a_damaged_row_is_one_device_and_not_the_page(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(1, "good"), state_of(2, "bad")])
    with settings.location.database() as store:
        store.engine.connection.exec_driver_sql(
            'UPDATE devices SET state = \'{"status": "online", "windows": "many"}\' WHERE device = \'bad\''
        )
        store.engine.connection.commit()
    async with console_of(settings) as console:
        found = {one["device"]: one["status"] for one in (await console.json("/devices"))["devices"]}
        assert found == {"good": "online", "bad": "unreadable"}
        assert (await console.get("/devices/bad")).status_code == 200


@pytest.mark.sqlite_only
@pytest.mark.both_engines
async def test_console_devices_say_what_cannot_be_read_and_come_back(tmp_path: Path) -> None:
    """``sqlite_only``: the file is moved away."""
    settings = made_settings(tmp_path)
    async with console_of(settings) as console:
        for path in ("/devices", "/devices/barn-1", "/enrolment", "/refusals"):
            page = await console.get(path)
            assert "has this coordinator ever run?" in page.text, path
            assert 'id="live"' in page.text, "it comes back by itself"
        assert (await console.get("/devices/barn-1")).status_code == 503
        assert (await console.json("/devices"))["trouble_of_tables"]
        store_fleet(settings, [state_of(1, "barn-1")])
        await console.views.fleet.again()
        assert await names(console) == ["barn-1"]
        file = settings.state_dir / "coordinator.sqlite3"
        file.rename(file.with_suffix(".away"))
        await console.views.fleet.again()
        await console.watch.read()
        page = await console.get("/devices")
        assert "What follows is how it stood before" in page.text
        assert "barn-1" in page.text
        detail = await console.get("/devices/barn-1")
        assert detail.status_code == 200
        file.with_suffix(".away").rename(file)
        await console.views.fleet.again()
        await console.watch.read()
        assert "What follows is how it stood before" not in (await console.get("/devices")).text
        gone = await console.get("/devices/nobody")
        assert gone.status_code == 404
        assert (await console.get("/devices/nobody", **{"hx-request": "true"})).status_code == 200
        assert (await console.get("/api/v1/devices/nobody")).status_code == 404
