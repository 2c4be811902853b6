"""What the coordinator says it waits for, and that what it says is fresh."""

import asyncio

from coordinator.status.history import read
from protocol import messages
from protocol.messages import RoundAnnouncement, State
from protocol.topics import Kind, broadcast_topic
from tests.support.coordinator.bench import FakeLink, bench
from tests.support.coordinator.fake import FLEET, frame, header, tiny_task


def said(link: FakeLink) -> list[RoundAnnouncement]:
    topic = broadcast_topic(FLEET, Kind.ROUND)
    return [messages.decode(p, RoundAnnouncement) for t, p, _ in link.sent if t == topic]


async def test_the_round_is_said_again_while_nothing_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.rounds.announcer._MIN_SPACING_S", 0.0)
    async with bench(tmp_path) as made:
        made.app.announcer.repeat_s = 0.05
        made.app.wires.changes.set()
        await made.until(lambda: len(said(made.link)) >= 5)
        assert said(made.link)[-1].every_s == 0.05
        assert said(made.link)[-1].phase == "waiting_for_devices"


async def test_the_last_word_is_stopped_but_after_the_last_round_it_stays_done(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1)) as made:
        await made.online("a")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
    assert said(made.link)[-1].phase == "stopped"
    assert said(made.link)[-1].every_s == 0.0
    async with bench(tmp_path, tiny_task(count=1)) as made:
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base)))
        await made.phase("done")
    assert said(made.link)[-1].phase == "done"


async def test_a_broker_that_takes_nothing_does_not_hold_up_the_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.rounds.announcer._FAREWELL_S", 0.05)
    async with bench(tmp_path) as made:
        made.link.hold = asyncio.Event()
        async with asyncio.timeout(2):
            await made.app.announcer.publish_stopped()


async def test_who_was_refused_for_good_is_not_waited_for_at_the_next_attempt(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=2, min_devices=2, deadline_s=1.0)) as made:
        await made.online("a", "b", "c")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base)))
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base), size=65))
        await made.until(lambda: "b was refused: wrong_tensors" in made.app.driver.why())
        await made.until(lambda: made.app.driver.state.attempt == 2)
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("a", "c")
        await made.give("c", Kind.UPDATE, frame(header("c", 1, base)))
        await made.until(lambda: made.app.driver.state.round == 2)
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("a", "b", "c"), "the next round asks it again"


async def test_a_refusal_outlives_a_restart_and_ends_when_the_device_comes_back(tmp_path) -> None:
    task = tiny_task(min_devices=2, deadline_s=1.0)
    async with bench(tmp_path, task) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await made.give("b", Kind.UPDATE, b"{}")
    async with bench(tmp_path, task) as made:
        assert made.app.driver.state.refused == {"b": "malformed"}
        await made.until(lambda: made.app.driver.state.attempt == 2)
        words = "waiting until 2 devices are online with enough data, 1 is: a; not b was refused: malformed"
        assert words in made.app.driver.why()
        await made.online("b")  # it only reports: nothing changed
        assert made.app.driver.state.refused
        await made.give("b", Kind.STATE, messages.encode(State(status="stopped", device="b")))
        await made.online("b")
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("a", "b")


async def test_an_update_refused_for_what_may_change_keeps_the_device_in(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await made.give("b", Kind.UPDATE, frame(header("b", 1, "0" * 64)))  # wrong base
        await made.give("b", Kind.UP_BLOB, b"short", "0" * 64, 0)
        assert made.app.driver.state.refused == {}
        await made.give("b", Kind.UPDATE, b"{}")
        assert made.app.driver.state.refused == {"b": "malformed"}
        await made.give("b", Kind.UPDATE, frame(header("b", 1, made.app.driver.state.manifest)))
        assert made.app.driver.state.refused == {}, "what it sent then was good"


async def test_the_words_name_who_is_here_and_what_the_others_lack(tmp_path) -> None:
    task = tiny_task(min_devices=2, min_windows=10)
    async with bench(tmp_path, task) as made:
        await made.online("here")
        await made.online("few", windows=3)
        await made.online("onlooker", roles=("observe",))
        await made.give("away", Kind.STATE, messages.encode(State(status="offline", device="away")))
        assert (
            "waiting until 2 devices are online with enough data, 1 is: here; "
            "not away (offline), few (3 of 10 labelled windows), onlooker (no role train)"
        ) in made.app.driver.why()
        await made.online("here", "late")
        await made.phase("collecting")
        await made.give("late", Kind.STATE, messages.encode(State(status="offline", device="late")))
        assert "waiting for here, late (offline)" in made.app.driver.why()


async def test_the_words_stay_bounded_in_a_large_fleet(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=99)) as made:
        names = [f"{n:03}-{'x' * 52}" for n in range(40)]
        await made.online(*names[:20])
        await made.online(*names[20:], windows=0)
        words = made.app.driver.why()
        assert len(words) <= 1000
        assert "20 are: 000-x" in words
        assert "and 16 more; not 020-x" in words, "whole names, as many as there is room for"


async def test_a_broker_that_is_gone_is_named_in_words_log_and_history(tmp_path, capsys) -> None:
    async with bench(tmp_path) as made:
        made.link.connected = False
        words = "not connected to the broker (connecting to nowhere); round 1 attempt 1"
        await made.until(lambda: words in (made.app.storage.store.get_meta("why") or ""))
        assert words in read(tmp_path / "coordinator")["why"]
        logged: list[str] = []

        def log() -> str:
            logged.append(capsys.readouterr().out)
            return "".join(logged)

        await made.until(lambda: f"why='{words}" in log())  # the driver has looked
        made.link.connected = True
        await made.until(lambda: words not in (made.app.storage.store.get_meta("why") or ""))
