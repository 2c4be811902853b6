"""Pages and operations of rounds, over tables that the coordinator's own writers filled."""

import pytest

from console.ports import ConsolePart
from coordinator.round_machine.events import RoundPhase
from protocol.errors import Reason, Refused
from tests.support.console.history import History, settings_in
from tests.support.console.serving import served

NASTY = "<script>alert(1)</script>"


@pytest.mark.both_engines
async def test_console_a_round_shows_who_was_selected_who_delivered_and_who_was_refused(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a", "b"])
        passed = {"d": f"it was selected lately {NASTY}"}
        history.opens(2, ["a", "b", "c"], passed=passed)
        history.later(30)
        history.closes(2, "given_up")
        history.opens(2, ["a", "b", "c"], attempt=2, passed=passed)
        history.later(5)
        history.delivers(2, ["a", "c"])
        history.refuses(2, "c", Refused(Reason.OUTLIER, f"too far {NASTY}"))
        history.stands(
            RoundPhase.COLLECTING, 2, 1, selected=("a", "b", "c"), delivered=("a",), until=history.wall() + 60
        )
    async with served(settings) as made:
        rows = (await made.json("/rounds"))["rounds"]
        assert [(row["round"], row["outcome"], row["delivered"], row["selected"]) for row in rows] == [
            (2, "", 2, 3),
            (1, "quorum", 2, 2),
        ]
        assert (rows[1]["bytes_up"], rows[1]["folded"], rows[1]["metrics"]["windows"]) == (5000, 2, 60)
        one = await made.json("/rounds/2")
        assert one["counts"] == {"delivered": 1, "awaited": 1, "missing": 0, "refused": 1}
        assert [step["kind"] for step in one["steps"]] == ["opened", "closed", "opened", "first"]
        assert (one["open"], one["phase"], one["quorum"]) == (True, "collecting", 3)
        devices = (await made.json("/rounds/2/devices?sort=arrived"))["devices"]
        assert [(one["device"], one["status"]) for one in devices] == [
            ("a", "delivered"),
            ("c", "refused"),
            ("b", "awaited"),
        ]
        assert devices[0]["update"]["metrics"] == {"loss": 0.25}
        assert (await made.json("/rounds/2/devices?status=refused"))["total"] == 1
        assert (await made.json("/rounds/2/devices?q=B"))["devices"][0]["device"] == "b"
        page = await made.page("/rounds/2")
        for words in (
            "attempt 1: given up",
            "able; windows of a",
            "did not deliver",
            "it was selected lately",
        ):
            assert words in page
        assert NASTY not in page
        assert "too far &lt;script&gt;" in page
        over = await made.json("/rounds/1")
        steps = [step["kind"] for step in over["steps"]]
        assert steps == ["opened", "first", "quorum", "closed", "folded"]
        assert not over["open"]
        assert (await made.json("/rounds/9", 404))["error"] == "round 9 is not in the history"
        assert "round 9 is not in the history" in await made.page("/rounds/9", 404)
        assert (await made.json("/rounds/2/devices?status=secret", 400))["error"]


async def test_console_a_round_of_ten_thousand_devices_pages_them(tmp_path) -> None:
    settings = settings_in(tmp_path)
    names = [f"device-{n:05}" for n in range(10_000)]
    with History(settings) as history:
        history.makes(0)
        history.opens(1, names, looked_back=True)
        history.later(3)
        history.delivers(1, names[:9000])
        history.stands(RoundPhase.COLLECTING, 1, 0, selected=names, delivered=names[:9000])
    async with served(settings) as made:
        before = made.statements
        page = await made.page("/rounds/1")
        assert made.statements - before < 20
        assert len(page.encode()) < 200_000
        assert page.count("/devices/device-") == 100
        assert "1 to 100 of 10,000 devices" in page
        before = made.statements
        for _ in range(20):
            await made.page("/rounds/1")
        assert made.statements == before, "one reading for all viewers"
        last = await made.json("/rounds/1/devices?page=100")
        assert (last["pages"], last["devices"][-1]["device"]) == (100, "device-09999")
        assert last["devices"][-1]["status"] == "awaited"
        missing = await made.json("/rounds/1/devices?status=awaited")
        assert missing["total"] == 1000
        found = await made.json("/rounds/1")
        assert found["counts"] == {"delivered": 9000, "awaited": 1000, "missing": 0, "refused": 0}


async def test_console_a_guided_round_shows_its_weights(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a", "b"])
        history.weighs(1, {"head": {"a": 0.2, "b": 0.8}}, [f"a is pushed out {NASTY}"])
        history.stands(RoundPhase.DONE, 1, 1)
    async with served(settings) as made:
        found = await made.json("/rounds/1")
        assert [(one["device"], one["share"]) for one in found["weights"]] == [("a", 0.4), ("b", 1.6)]
        page = await made.page("/rounds/1")
        assert "a is pushed out &lt;script&gt;" in page
        assert NASTY not in page


async def test_console_rounds_say_that_tables_cannot_be_read_and_come_back(tmp_path) -> None:
    settings = settings_in(tmp_path)
    async with served(settings) as made:
        page = await made.page("/rounds")
        assert "has this coordinator ever run?" in page
        assert "every 3s" in page, "it asks again by itself"
        await made.json("/rounds", 503)
        await made.page("/rounds/1")
        with History(settings) as history:
            history.makes(0)
            history.plays(1, ["a"])
            history.stands(RoundPhase.WAITING, 2, 1)
        await made.watch.read(marked=True)
        page = await made.page("/rounds")
        assert "/rounds/1" in page
        assert "every 3s" not in page
        shown = page.partition('"x-lichen-shown": "')[2].partition('"')[0]
        assert await made.page("/rounds", 204, **{"x-lichen-shown": shown}) == ""
        settings.state_dir.joinpath("coordinator.sqlite3").write_bytes(b"no database" * 1000)
        await made.watch.read(marked=True)
        page = await made.page("/rounds")
        assert "cannot be read" in page
        assert "/rounds/1" in page, "what was read before stays"


async def test_console_controls_of_others_have_their_places(tmp_path) -> None:
    asked = []

    def controls(_request: object, place: str, subject: object) -> str:
        asked.append((place, dict(subject)))
        return ""

    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a"])
        history.stands(RoundPhase.WAITING, 2, 1)
    async with served(settings, ConsolePart(controls=controls)) as made:
        await made.page("/rounds")
        await made.page("/rounds/1")
        await made.page("/rollouts")
        assert asked == [("rounds", {"ordered": ""}), ("round", {"round": 1}), ("rollouts", {"last": 0})]
