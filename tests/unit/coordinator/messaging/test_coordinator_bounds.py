"""What any one member may cost the coordinator: work, decode slots, bytes fetched, lines of the log."""

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.ingest import verifier
from coordinator.ingest.state_receiver import BURST, most_bytes
from coordinator.messaging.blob_server import FetchBudget
from coordinator.messaging.log_rate_limit import BURST_OF_ALL, OF_ALL_A_SECOND, LogRateLimiter
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from protocol import messages
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest as digest_of
from protocol.messages import Fetch, Metric, ModalityState, State
from protocol.topics import Kind
from runtime.pacing import MAX_NAMES, TokenBucket, TokenBuckets
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

QUICK = {"refusals": 3, "within_s": 60.0, "first_s": 600.0, "longest_s": 3600.0}


def state_of(device: str, status: str = "online", **changes: object) -> State:
    given = {"roles": ("train",), "modalities": {"acc": ModalityState(windows=(9, 0))}, "windows": 9}
    return State.model_validate({"status": status, "device": device} | given | changes)


def fleet_of(folder, devices: int) -> None:
    """A state folder of a coordinator that knows so many devices, all offline."""
    (folder / "coordinator").mkdir()
    with Database(folder / "coordinator" / DATABASE) as store, store.transaction() as connection:
        rows = [
            {"device": f"d{n}", "state": state_of(f"d{n}", "offline").model_dump(mode="json"), "wall": 1.0}
            for n in range(devices)
        ]
        connection.execute(schema.devices.insert(), rows)


async def test_a_device_that_flaps_does_not_make_the_coordinator_look_at_10000_others(
    tmp_path, monkeypatch
) -> None:
    fleet_of(tmp_path, 10_000)
    looks = Counter()
    eligible = DeviceRegistry.eligible

    def counted(self, terms):
        looks["eligible"] += 1
        return eligible(self, terms)

    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        monkeypatch.setattr(DeviceRegistry, "eligible", counted)
        for n in range(160):
            await made.give("d7", Kind.STATE, messages.encode(state_of("d7", ("online", "offline")[n % 2])))
        await made.give("d7", Kind.STATE, messages.encode(state_of("d7", windows=77)))
        assert looks["eligible"] < 40, "once for each state, it would stop the loop"
        assert made.app.states.coalesced > 100
        known = await made.until(lambda: (d := made.app.roster.get("d7")) and d.online and d)
        assert known.state.windows == 77, "the last word counts"


async def test_no_state_and_no_metric_of_a_quarantined_device_is_taken_and_it_is_asked_afterwards(
    tmp_path,
) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine=QUICK) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.give("b", Kind.METRIC, messages.encode(Metric(device="b", round=1, metrics={"loss": 1.0})))
        for n in range(3):
            await made.give("a", Kind.UPDATE, frame(header("a", 1, base), 20000.0 + n))
        assert made.app.access.denial("a") is not None
        await made.give("a", Kind.STATE, messages.encode(state_of("a", windows=5)))
        await made.give("a", Kind.METRIC, messages.encode(Metric(device="a", round=1, metrics={"loss": 1.0})))
        assert made.app.roster.get("a").state.windows == 10
        made.app.storage.ledger.save()
        assert [row["device"] for row in made.app.storage.store.rows(schema.device_metrics.select())] == ["b"]
        made.app.quarantine._records.clear()
        await made.until(lambda: made.link.to("a", Kind.CMD))
        assert made.link.to("a", Kind.CMD)[0].command == "send_state"


async def test_a_flood_of_updates_that_no_round_wants_takes_no_decode_slot(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(verifier, "SMALL_BYTES", 0)  # these are large ones
    async with bench(tmp_path, tiny_task(devices_per_round=1)) as made:
        await made.online("a")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.online("b")
        made.app.receiver.verifier.decoding.taken = verifier.DECODED  # they are being decoded, and take long
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base)))
        await made.give("a", Kind.UPDATE, frame(header("a", 7, base)))
        assert made.link.receipts("b")[0].reason is Reason.NOT_SELECTED
        assert made.link.receipts("a")[0].reason is Reason.WRONG_ROUND
        made.app.receiver.verifier.decoding.taken = 0
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base)))
        assert made.link.receipts("a")[1].status == "accepted"


async def test_a_device_fetches_so_many_bytes_a_day_and_a_revoked_one_none(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=3), fetch={"device_bytes_a_day": 2500}) as made:
        await made.online("a", "b")
        data, blobs = b"x" * 10_000, made.app.server.blobs
        blobs.pin("test", [digest_of(data)])  # what is of no version goes once the first one is there
        digest = blobs.put(data).digest
        ask = messages.encode(Fetch(digest=digest, first=0, count=10, chunk_bytes=1024))

        def chunks(device: str) -> int:
            return sum(f"/{device}/" in topic and "blob" in topic for topic, *_ in made.link.sent)

        with capture_logs() as lines:
            await made.give("a", Kind.FETCH, ask)
            await made.until(lambda: chunks("a") == 2)
        assert [one["event"] for one in lines if one["log_level"] == "warning"] == ["fetch_over_budget"]
        await made.give("b", Kind.FETCH, ask)
        await made.until(lambda: chunks("b") == 2)
        revoked = Refused(Reason.REVOKED, "")
        made.app.access._barred = (lambda d: revoked if d == "c" else None, *made.app.access._barred)
        await made.online("c")
        await made.give("c", Kind.FETCH, ask)
        await asyncio.sleep(0.05)
        assert (chunks("a"), chunks("c")) == (2, 0)
        assert made.app.access.turned_away >= 2


def test_names_that_nobody_knows_fetch_from_one_budget() -> None:
    budget = FetchBudget(1000, {"member"})
    assert [budget.take(f"made-up-{n}", 400, 0.0) for n in range(4)] == [True, True, False, False]
    assert budget.take("member", 1000, 0.0)
    assert not budget.take("member", 400, 1.0)
    assert budget.take("member", 400, 43_200.0), "half a day gives half of it back"
    assert all(FetchBudget(0, set()).take("anybody", 10**12, 0.0) for _ in range(9))


async def test_metrics_of_a_round_are_kept_of_those_who_took_part_in_it(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(devices_per_round=1)) as made:
        await made.online("a")
        await made.phase("collecting")
        await made.online("b")
        for device, round_ in (("a", 1), ("b", 1), ("a", 0), ("stranger", 1)):
            metric = Metric(device=device, round=round_, metrics={"loss": 1.0})
            await made.give(device, Kind.METRIC, messages.encode(metric))
        made.app.storage.ledger.save()
        rows = made.app.storage.store.rows(schema.device_metrics.select())
        assert [(row["device"], row["round"]) for row in rows] == [("a", 1)]


async def test_a_state_is_bounded_in_bytes_and_in_classes(tmp_path) -> None:
    task = tiny_task()
    async with bench(tmp_path, task) as made:
        many = {f"m{n}": ModalityState(windows=(7,) * 1024) for n in range(16)}
        await made.give("a", Kind.STATE, messages.encode(state_of("a", modalities=many)))
        assert made.refusals() == {("a", "too_large"): 1}
        assert "a" not in made.app.roster
        await made.online("a")
        for _ in range(9):  # a device that still has a task with more modalities
            await made.give("a", Kind.STATE, messages.encode(state_of("a", modalities=many)))
        assert made.app.access.denial("a") is None
        wide = {"acc": ModalityState(windows=(7,) * 1000)}
        payload = messages.encode(state_of("b", modalities=wide))
        assert len(payload) < most_bytes(task)
        await made.give("b", Kind.STATE, payload)
        assert made.app.roster.get("b").state.modalities["acc"].windows == (7, 7)


def test_lines_of_the_log_are_bounded_for_all_names_together() -> None:
    now = [0.0]
    voice = LogRateLimiter(lambda: now[0])
    said = [voice.unsaid(f"made-up-{n}") for n in range(20_000)]
    assert sum(one is not None for one in said) == BURST_OF_ALL
    day, lines = 86_400, 0
    for second in range(day):
        now[0] = float(second)
        lines += voice.unsaid(f"other-{second}") is not None
    assert lines <= day * OF_ALL_A_SECOND + 1
    now[0] += 60.0
    assert voice.unsaid("honest") >= 3, "it tells how many were left out"


def test_buckets_forget_the_name_used_longest_ago() -> None:
    buckets = TokenBuckets(1, 0.1, most=2)
    assert [buckets.take(name, 0.0) for name in "aabc"] == [True, False, True, True]
    assert len(buckets) == 2
    assert not buckets.take("c", 0.0)
    assert buckets.take("a", 0.0), "forgotten, so it begins anew"
    assert MAX_NAMES >= 100_000
    bucket = TokenBucket(2, 1.0)
    assert [bucket.take(now) for now in (9.0, 9.0, 9.0, 5.0, 6.0)] == [True, True, False, False, True]


@pytest.mark.parametrize("status", ["stopped", "offline"])
async def test_goodbye_is_heard_within_the_burst(tmp_path, status: str) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        for _ in range(int(BURST) // 2):
            await made.online("a")
        await made.give("a", Kind.STATE, messages.encode(state_of("a", status)))
        assert not made.app.roster.get("a").online
