"""What status says where clocks differ, or were set, and of devices that are ahead of a coordinator."""

import io

import pytest
from rich.console import Console

from coordinator.cli.status import look
from lichen.commands.status_table import show
from protocol.messages import RoundAnnouncement, encode
from protocol.rollout import TrialReport
from protocol.topics import Kind, broadcast_topic
from runtime.fleet_view import FleetView
from runtime.waits import lines
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

YEAR_S = 365 * 86400.0


async def test_with_another_clock_the_coordinators_own_durations_are_shown_and_the_difference(tmp_path):
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a")
        await made.until(lambda: "waiting" in (made.app.storage.store.get_meta("why") or ""))
        store, settings, wall = made.app.storage.store, made.app.settings, made.app.clock.wall()
        found, waits = look(store, settings, wall)
        assert {wait.what for wait in waits} == {"devices"}
        for ahead_s, words in ((YEAR_S, "365 d 0 h ahead of"), (-YEAR_S, "365 d 0 h behind")):
            found, waits = look(store, settings, wall + ahead_s)
            clock, *others = lines(waits, found["now"])
            assert f"this clock is {words}" in clock or "364 d 23 h" in clock
            assert others
            assert not any(" d " in line for line in others), others
        # The clock was set after the start: the rounds' times are on the line from before.
        said_at = float(store.get_meta("why_wall"))
        store.put_meta({"why_wall": str(said_at + YEAR_S)})
        found, waits = look(store, settings, said_at + YEAR_S + 1)
        assert not any(" d " in line for line in lines(waits, found["now"]))


@pytest.mark.parametrize(
    ("off_s", "heard", "said", "clocks"),
    [
        (30.0, False, "reported 30 s ago", ""),
        (30.0, True, "reported just now", ""),
        (YEAR_S, True, "reported just now", "this clock is 365 d 0 h ahead of the coordinator's"),
        (-YEAR_S, True, "reported just now", "this clock is 365 d 0 h behind the coordinator's"),
        (-YEAR_S, False, "reported 0 s ago", "this clock is 365 d 0 h behind the coordinator's"),
        (YEAR_S, False, "reported 365 d 0 h ago", ""),  # an old report, or another clock: nobody knows
    ],
)
def test_a_live_word_of_another_clock_is_no_old_one(off_s, heard, said, clocks, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 2e9 + off_s)
    view = FleetView("f", heard=heard)
    one = RoundAnnouncement(task="t", round=1, rounds=2, phase="collecting", waiting_for="a", said_wall=2e9)
    assert view.apply(broadcast_topic("f", Kind.ROUND), encode(one))
    shown = io.StringIO()
    show(view, Console(file=shown, width=200), why=True)
    assert said in shown.getvalue()
    assert clocks in shown.getvalue()
    assert ("this clock" in shown.getvalue()) == bool(clocks)


async def test_devices_that_run_what_a_new_life_of_the_coordinator_has_not_made_yet_are_named(tmp_path):
    every = {"export": {"every_rounds": 1}}
    async with bench(tmp_path, tiny_task(min_devices=1), **every) as made:
        for name, version in (("a", 7), ("b", 0)):
            trial = TrialReport(version=version, bundle="a" * 64, serial=0, phase="committed")
            await made.online(name, roles=("train", "observe"), model="a" * 64, trial=trial)
        await made.phase("collecting")
        driver, wall = made.app.driver, made.app.clock.wall()

        def told() -> str:
            return "\n".join(lines(look(made.app.storage.store, made.app.settings, wall)[1], wall))

        assert "later version" not in told(), "nothing was exported, so nothing was refused"
        update = frame(header("a", 1, driver.state.manifest))
        await made.give("a", Kind.UPDATE, update)
        await made.give("b", Kind.UPDATE, frame(header("b", 1, driver.state.manifest), 2.0))
        await made.until(lambda: driver.state.round == 2)
        words = "a later version than this coordinator ever exported (its newest is 1): a (version 7)"
        assert words in told()
        assert "until version 7, or at once with rollout.mode = manual" in told()
