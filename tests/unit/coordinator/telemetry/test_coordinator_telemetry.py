import asyncio
import itertools
import math
import random

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from coordinator.status.prometheus import _Collector
from coordinator.storage import schema
from coordinator.telemetry.distribution import OF_DEVICE, FleetDistribution
from coordinator.telemetry.history import LONGEST_STEP_S, MOST_POINTS, added, due_in_s, flat
from protocol import messages
from protocol.errors import Transient
from protocol.messages import Metric
from protocol.telemetry import ModalityTelemetry, Telemetry
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task

NAMES = frozenset({"acc", "gyro"})


def report(**changes: object) -> Telemetry:
    given = {
        "uptime_s": 60.0,
        "spool_updates": 1,
        "disk_free_bytes": 5_000_000_000,
        "temperature_c": 51.5,
        "cpu_share": 0.07,
        "modalities": {"acc": ModalityTelemetry(windows_per_s=0.78, quality=0.93)},
    }
    return Telemetry.model_validate(given | changes)


async def tell(made, device: str, told: Telemetry) -> None:
    await made.give(device, Kind.METRIC, messages.encode(Metric(device=device, metrics={}, telemetry=told)))


def stored(made, table) -> dict[str, dict]:
    made.app.storage.ledger.save()
    return {row["device"]: row for row in made.app.storage.store.rows(sa.select(table))}


def series(*parts) -> list[str]:
    registry = CollectorRegistry()
    registry.register(_Collector(parts))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_metrics_of_a_report_by_name():
    told = report(
        modalities={"acc": {"windows_per_s": 1.0}, "made-up": {"windows_per_s": 1.0, "quality": 1.0}}
    )
    assert flat(told, NAMES) == {
        "uptime_s": 60.0,
        "spool_updates": 1,
        "disk_free_bytes": 5_000_000_000,
        "temperature_c": 51.5,
        "cpu_share": 0.07,
        "windows_per_s/acc": 1.0,
    }


def test_every_number_of_a_report_has_a_distribution():
    numbers = {name for name in Telemetry.model_fields if name != "modalities"}
    assert numbers == set(OF_DEVICE)


@pytest.mark.parametrize("every_s", [1.0, 60.0, 600.0, 7200.0])
def test_a_history_is_bounded_and_covers_the_time(every_s):
    history, wall = {}, 1_700_000_000.0
    rng = random.Random(1)
    for n in range(3000):
        wall += every_s * rng.uniform(0.95, 1.05)
        if not due_in_s(history, wall):
            history = added(history, wall, {"cpu_share": n / 7, **({"late": 1.0} if n > 2000 else {})})
        columns = history["columns"]
        assert len(columns["at"]) <= MOST_POINTS
        assert {len(column) for column in columns.values()} == {len(columns["at"])}
    at = columns["at"]
    assert at == sorted(at)
    steps = [b - a for a, b in itertools.pairwise(at)]
    assert max(steps) <= 2.5 * max(min(steps), every_s), "evenly thinned"
    covered = min(3000 * every_s, MOST_POINTS * max(LONGEST_STEP_S, every_s) * 0.7)
    assert at[-1] - at[0] >= covered / 3
    assert wall - at[-1] <= max(LONGEST_STEP_S, 1.05 * every_s)


def test_a_metric_that_comes_later_or_goes_is_none_elsewhere():
    history = added({}, 1.0, {"a": 1.23456789})
    history = added(history, 2.0, {"b": 2.0})
    assert history["columns"] == {"at": [1.0, 2.0], "a": [1.235, None], "b": [None, 2.0]}


def test_a_clock_that_goes_back_begins_again():
    history = added(added({}, 1000.0, {"a": 1.0}), 2000.0, {"a": 2.0})
    assert due_in_s(history, 500.0) == 0.0
    assert added(history, 500.0, {"a": 3.0})["columns"] == {"at": [500.0], "a": [3.0]}


def test_buckets_are_cumulative_and_a_new_report_replaces_the_old_one():
    fleet = FleetDistribution(["acc"], 100.0, 10)
    fleet.put("a", {"temperature_c": 45.0, "quality/acc": 0.95}, 0.0)
    fleet.put("b", {"temperature_c": 85.0, "unknown": 1.0}, 1.0)
    fleet.put("a", {"temperature_c": 75.0, "quality/acc": 0.25}, 2.0)
    found = {one.name: dict(one.values) for one in fleet.metrics()}
    temperature = found["lichen_telemetry_temperature_c_bucket"]
    assert [temperature[(le,)] for le in ("70", "80", "90", "+Inf")] == [0, 1, 2, 2]
    assert found["lichen_telemetry_temperature_c_sum"][()] == 160.0
    assert found["lichen_telemetry_quality_bucket"]["acc", "0.3"] == 1
    assert found["lichen_telemetry_quality_count"]["acc",] == 1
    assert found["lichen_telemetry_devices"][()] == 2
    fleet.expire(101.5)
    assert len(fleet) == 1, "b is too old"
    fleet.expire(1000.0)
    found = {one.name: dict(one.values) for one in fleet.metrics()}
    assert all(value == 0 for values in found.values() for value in values.values())


def test_the_device_that_is_silent_for_longest_makes_room():
    fleet = FleetDistribution([], 1e9, 2)
    for now, device in enumerate(["a", "b", "a", "c"]):
        fleet.put(device, {"uptime_s": 1.0}, float(now))
    assert list(fleet._devices) == ["a", "c"]


def test_the_counts_are_those_of_a_recount():
    rng, fleet, truth = random.Random(3), FleetDistribution(["acc"], 50.0, 30), {}
    for now in range(2000):
        device = f"d{rng.randrange(40)}"
        values = {"cpu_share": rng.random() * 6, "windows_per_s/acc": rng.random()}
        fleet.put(device, values, float(now))
        truth.pop(device, None)
        truth[device] = values
        while len(truth) > 30:
            del truth[next(iter(truth))]
    again = FleetDistribution(["acc"], 50.0, 30)
    for device, values in truth.items():
        again.put(device, values, 0.0)
    assert fleet._counts == again._counts
    assert all(math.isclose(fleet._sums[name], total, abs_tol=1e-6) for name, total in again._sums.items())


async def test_a_report_is_stored_and_its_history_grows(tmp_path):
    async with bench(tmp_path, tiny_task(min_devices=3)) as made:
        await made.online("a")
        await tell(made, "a", report())
        row = stored(made, schema.telemetry)["a"]
        assert row["report"]["temperature_c"] == 51.5
        assert row["report"]["quality/acc"] == 0.93
        history = await made.until(lambda: stored(made, schema.telemetry_history).get("a"))
        assert history["history"]["columns"]["cpu_share"] == [0.07]
        await tell(made, "a", report(cpu_share=0.5))
        assert stored(made, schema.telemetry)["a"]["report"]["cpu_share"] == 0.5, "the last one wins"
        await made.until(
            lambda: (
                stored(made, schema.telemetry_history)["a"]["history"]["columns"]["cpu_share"] == [0.07, 0.5]
            )
        )


async def test_a_history_goes_on_after_a_restart(tmp_path):
    for cpu in (0.1, 0.2):
        async with bench(tmp_path, tiny_task(min_devices=3)) as made:
            await made.online("a")
            await tell(made, "a", report(cpu_share=cpu))
            want = [0.1, 0.2] if cpu == 0.2 else [0.1]
            await made.until(
                lambda want=want: (
                    (row := stored(made, schema.telemetry_history).get("a"))
                    and row["history"]["columns"]["cpu_share"] == want
                )
            )


async def test_who_is_not_registered_or_too_fast_is_not_stored(tmp_path):
    async with bench(tmp_path, tiny_task(min_devices=3), devices={"histories": 1}) as made:
        await made.online("a", "b")
        await tell(made, "made-up", report())
        for n in range(100):
            await tell(made, "a", report(spool_updates=n))
        await tell(made, "b", report())
        newest = stored(made, schema.telemetry)
        assert newest.keys() == {"a", "b"}
        assert newest["a"]["report"]["spool_updates"] < 30, "the burst, and no more"
        await made.until(lambda: stored(made, schema.telemetry_history))
        await asyncio.sleep(2.5)
        assert stored(made, schema.telemetry_history).keys() == {"a"}, "devices.histories is 1"


async def test_a_full_disk_loses_no_point(tmp_path, monkeypatch):
    async with bench(tmp_path, tiny_task(min_devices=3)) as made:
        await made.online("a")
        put_all, fails = made.app.storage.store.put_all, [True]

        def full(table, rows):
            if table is schema.telemetry_history and fails:
                fails.pop()
                raise Transient("no space left on the disk")
            put_all(table, rows)

        monkeypatch.setattr(made.app.storage.store, "put_all", full)
        await tell(made, "a", report())
        await made.until(lambda: stored(made, schema.telemetry_history).get("a"))
        assert not fails


async def test_a_forgotten_device_leaves_nothing(tmp_path):
    async with bench(tmp_path, tiny_task(min_devices=3)) as made:
        await made.online("a")
        await tell(made, "a", report())
        await made.until(lambda: stored(made, schema.telemetry_history))
        made.app.forgetting.forget(["a"])
        assert (stored(made, schema.telemetry), stored(made, schema.telemetry_history)) == ({}, {})
        telemetry = next(part for part in made.app.measured if hasattr(part, "record"))
        assert "lichen_telemetry_devices 0.0" in series(telemetry)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_device_that_is_forgotten_during_a_write_leaves_its_place_to_another(
    tmp_path, monkeypatch, fails
):
    async with bench(tmp_path, tiny_task(min_devices=3), devices={"histories": 1}) as made:
        await made.online("a", "b")
        put_all, first, loop = made.app.storage.store.put_all, [True], asyncio.get_running_loop()

        async def forget():
            made.app.forgetting.forget(["a"])

        def forgetting(table, rows):
            if table is not schema.telemetry_history or not first:
                put_all(table, rows)
                return
            asyncio.run_coroutine_threadsafe(forget(), loop).result(30)
            first.clear()
            if fails:
                raise Transient("no space left on the disk")
            put_all(table, rows)

        monkeypatch.setattr(made.app.storage.store, "put_all", forgetting)
        await tell(made, "a", report())
        await made.until(lambda: not first)
        await asyncio.sleep(0.1)
        await tell(made, "b", report())
        await made.until(lambda: "b" in stored(made, schema.telemetry_history))
        assert stored(made, schema.telemetry_history).keys() == {"b"}


@pytest.mark.long
async def test_10000_devices_make_at_most_2000_series(tmp_path):
    async with bench(tmp_path, tiny_task(min_devices=100_000), devices={"most": 20_000}) as made:
        telemetry = next(part for part in made.app.measured if hasattr(part, "record"))
        before = len(series(*made.app.measured))
        for n in range(10_000):
            await telemetry.record(f"d{n}", report(cpu_share=n / 10_000), lambda: None)
        after = series(*made.app.measured)
        assert len(after) == before <= 2000
        assert "lichen_telemetry_devices 10000.0" in after
        assert not [line for line in after if '"d77"' in line]
