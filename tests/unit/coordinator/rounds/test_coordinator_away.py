"""Devices that went away: who said goodbye is not waited for, who is silent for long is offline."""

import asyncio

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.status.history import read
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol import messages
from protocol.messages import Metric, ModalityState, State
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

LONG = {"count": 1, "deadline_s": 3600.0}


async def away(made, device: str, status: str) -> None:
    await made.give(device, Kind.STATE, messages.encode(State(status=status, device=device)))


async def deliver(made, *devices: str) -> None:
    base = made.app.driver.state.manifest
    for device in devices:
        await made.give(device, Kind.UPDATE, frame(header(device, 1, base)))


async def test_a_round_closes_with_those_who_are_here_when_all_others_went_away(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(**LONG), away_grace_s=0.3, spread_s=0.2) as made:
        await made.online("a", "b", "c", "d")
        await made.phase("collecting")
        await deliver(made, "a", "b")
        await away(made, "c", "stopped")
        await asyncio.sleep(0.9)
        assert made.app.driver.state.phase == "collecting", "d is here"
        await away(made, "d", "offline")
        await made.until(lambda: made.app.driver.state.away_since is not None)
        assert "waiting for c (stopped), d (offline), all of them away" in made.app.driver.why()
        await made.phase("done")
        [found] = read(tmp_path / "coordinator")["rounds"]
        assert found["attempts"][0]["outcome"] == "away"
        assert found["counted"] == ["a", "b"]


async def test_who_comes_back_within_the_grace_is_waited_for(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(**LONG), away_grace_s=1.2, spread_s=0.2) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await deliver(made, "a")
        await away(made, "b", "offline")
        await made.until(lambda: made.app.driver.state.away_since is not None)
        await made.online("b")
        await made.until(lambda: made.app.driver.state.away_since is None)
        assert made.link.to("b", Kind.OFFER), "it is offered the round again"
        await asyncio.sleep(1.4)
        assert made.app.driver.state.phase == "collecting"
        await deliver(made, "b")
        await made.phase("done")
        assert read(tmp_path / "coordinator")["rounds"][0]["attempts"][0]["outcome"] == "quorum"


async def test_an_update_that_the_broker_still_holds_counts_though_its_device_went_away(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(**LONG), away_grace_s=3600.0, spread_s=0.2) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await deliver(made, "a")
        await away(made, "b", "stopped")
        await made.until(lambda: made.app.driver.state.away_since is not None)
        await deliver(made, "b")
        await made.phase("done")
        assert read(tmp_path / "coordinator")["rounds"][0]["counted"] == ["a", "b"]


async def test_with_too_few_updates_the_round_stays_open_for_those_who_come_back(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2, **LONG), away_grace_s=0.1, spread_s=0.2) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await deliver(made, "a")
        await away(made, "b", "stopped")
        await made.until(lambda: made.app.driver.state.away_since is not None)
        await asyncio.sleep(0.8)
        assert made.app.driver.state.phase == "collecting"
        await made.online("b")
        await deliver(made, "b")
        await made.phase("done")


async def test_a_device_that_is_silent_for_long_is_offline_until_it_says_otherwise(tmp_path) -> None:
    quick = {"silent_s": 0.6}
    async with bench(tmp_path, tiny_task(min_devices=2), devices=quick) as made:
        await made.online("a")
        await made.until(lambda: not made.app.roster.get("a").online)
        made.app.storage.ledger.save()
        assert made.app.storage.store.rows(schema.devices.select())[0]["state"]["status"] == "offline"
        await made.online("a")
        assert made.app.roster.online() == ("a",)
        for _ in range(4):  # whatever it sends shows that it is here
            await asyncio.sleep(0.3)
            await made.give("a", Kind.METRIC, messages.encode(Metric(device="a", metrics={})))
        assert made.app.roster.online() == ("a",)


def test_who_was_online_before_a_restart_has_its_time_from_the_start(tmp_path) -> None:
    now = [100.0]
    with Database(tmp_path / "c.sqlite3") as store:
        before = DeviceRegistry(store, lambda: 1.0, lambda: now[0])
        state = State(status="online", device="a", roles=("train",), modalities={"acc": ModalityState()})
        before.update(state)
        store.put(schema.devices, **before.row("a"))
        now[0] = 1e6
        roster = DeviceRegistry(store, lambda: 1e9, lambda: now[0])
        now[0] += 1799.0
        assert roster.hush(1800.0) == ()
        now[0] += 1.0
        assert roster.hush(1800.0) == ("a",)
        assert roster.hush(1800.0) == ()
        assert roster.get("a").state.modalities, "what it has stays known"
        assert roster.update(state), "it has come"
