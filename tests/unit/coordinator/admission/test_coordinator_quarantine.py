"""Repetition has consequences: not selected, refused undecoded, until time or a person ends it."""

from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.admission.quarantine import (
    OffenceRecord,
    Quarantine,
    QuarantineSettings,
    describe,
    record_offence,
)
from coordinator.ingest import verifier
from coordinator.status.history import read as history
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol import messages
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef
from protocol.topics import Kind
from runtime.clock import SystemClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import ANYBODY, frame, header, tiny_task

pytestmark = pytest.mark.both_engines

RULES = QuarantineSettings(refusals=3, within_s=100.0, first_s=10.0, longest_s=40.0)


def after(
    times: list[float], known: OffenceRecord | None = None, rules: QuarantineSettings = RULES
) -> OffenceRecord:
    known = known or OffenceRecord()
    for t in times:
        known = record_offence(known, "non_finite", t, rules)
    return known


def test_three_refusals_within_the_time_are_a_quarantine_and_two_are_none() -> None:
    assert after([1000.0, 1001.0]).until == 0
    known = after([1000.0, 1001.0, 1002.0])
    assert (known.since, known.until, known.level) == (1002.0, 1012.0, 1)


def test_refusals_far_apart_are_forgiven() -> None:
    assert after([1000.0 + 60 * n for n in range(20)]).until == 0


def test_each_quarantine_lasts_twice_as_long_up_to_a_bound_and_good_conduct_starts_anew() -> None:
    known, now, lasted = OffenceRecord(), 1000.0, []
    for _ in range(4):
        known = after([now, now, now], known)
        lasted.append(known.until - known.since)
        now = known.until + 1
    assert lasted == [10.0, 20.0, 40.0, 40.0]
    known = after([now + 41.0] * 3, known)
    assert known.until - known.since == 10.0


def test_a_refusal_counts_for_the_time_given_and_no_longer() -> None:
    assert after([1000.0, 1001.0, 1099.9]).level == 1
    assert after([1000.0, 1001.0, 1100.0]).level == 0


def test_a_quarantine_is_not_lengthened_while_it_lasts_and_the_next_may_begin_with_its_end() -> None:
    known = after([1000.0] * 3)
    assert after([1009.9] * 9, known).until == 1010.0
    again = after([1010.0] * 3, known)
    assert (again.since, again.until, again.level) == (1010.0, 1030.0, 2)
    just = after([1030.0 + RULES.longest_s] * 3, again)
    assert just.level == 3, "good conduct lasts longer than the longest quarantine"


def test_zero_refusals_never_quarantine() -> None:
    rules = RULES.model_copy(update={"refusals": 0})
    assert after([1000.0] * 99, rules=rules).until == 0


def test_a_clock_set_back_neither_counts_old_refusals_nor_lengthens_a_quarantine(tmp_path) -> None:
    assert after([1000.0, 1001.0, 3.0]).until == 0  # those lie in the future now
    now = [1000.0]
    with Database(tmp_path / "c.sqlite3") as store:
        standing = Quarantine(
            store, WriteBehindBuffer(store, SystemClock()), lambda: now[0], RULES, **ANYBODY
        )
        for _ in range(3):
            standing.refused("a", Refused(Reason.NON_FINITE, "x"))
        assert standing.denial("a") is not None
        now[0] = 10.0
        assert "another 10 s" in str(standing.denial("a"))


def test_only_content_counts(tmp_path) -> None:
    with Database(tmp_path / "c.sqlite3") as store:
        standing = Quarantine(
            store, WriteBehindBuffer(store, SystemClock()), lambda: 1000.0, RULES, **ANYBODY
        )
        for reason in (
            Reason.WRONG_ROUND,
            Reason.DUPLICATE,
            Reason.WRONG_DIGEST,
            Reason.FULL,
            Reason.NOT_SELECTED,
        ):
            for _ in range(9):
                standing.refused("a", Refused(reason, "x"))
        assert standing.denial("a") is None
        for _ in range(3):
            standing.refused("a", Refused(Reason.OUTLIER, "x"))
        refused = standing.denial("a")
        assert refused is not None
        assert refused.reason is Reason.QUARANTINED
        assert "outlier" in refused.detail
        assert standing.denial("b") is None
        assert set(standing.in_force()) == {"a"}


def test_the_operator_ends_it_and_names_are_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.admission.quarantine.MAX_TRACKED", 5)
    now = [1000.0]
    with Database(tmp_path / "c.sqlite3") as store:
        standing = Quarantine(
            store, WriteBehindBuffer(store, SystemClock()), lambda: now[0], RULES, **ANYBODY
        )
        for _ in range(3):
            standing.refused("a", Refused(Reason.MALFORMED, "x"))
        for n in range(20):
            standing.refused(f"stranger{n}", Refused(Reason.MALFORMED, "x"))
        assert len(standing._records) == 5
        assert standing.denial("a") is not None  # who is in quarantine is forgotten last
        standing.released_at = {"a": 1001.0}.get
        assert standing.denial("a") is None
        now[0] = 1002.0  # before the old quarantine would have ended
        for left in (True, True, False):
            standing.refused("a", Refused(Reason.MALFORMED, "x"))
            assert (standing.denial("a") is None) is left, "an approval is no charter"
        assert "the first time" in str(standing.denial("a"))


def test_a_name_that_no_device_has_is_not_kept_and_an_unreadable_record_is_dropped(tmp_path) -> None:
    with Database(tmp_path / "c.sqlite3") as store:
        ledger = WriteBehindBuffer(store, SystemClock())
        rules = {**ANYBODY, "known": {"a"}.__contains__}
        standing = Quarantine(store, ledger, lambda: 1000.0, RULES, **rules)
        for device in ("a", "made up"):
            for _ in range(3):
                standing.refused(device, Refused(Reason.MALFORMED, "x"))
        assert set(standing.in_force()) == {"a"}
        for rot in ("{", "[]", '{"level": 3}', '{"times": [], "nose": 1}'):
            ledger.note(schema.standing, device=rot, record=rot)
        ledger.save()
        again = Quarantine(store, ledger, lambda: 1001.0, RULES, **ANYBODY)
        assert set(again._records) == {"a"}
        assert again.denial("a") is not None


def test_a_record_that_is_forgotten_stays_so_after_a_restart(tmp_path) -> None:
    with Database(tmp_path / "c.sqlite3") as store:
        ledger = WriteBehindBuffer(store, SystemClock())
        standing = Quarantine(store, ledger, lambda: 1000.0, RULES, **ANYBODY)
        for device in ("a", "b"):
            for _ in range(3):
                standing.refused(device, Refused(Reason.MALFORMED, "x"))
        ledger.save()
        standing.forget("a")
        standing.forget("nobody")
        ledger.save()
        again = Quarantine(store, ledger, lambda: 1001.0, RULES, **ANYBODY)
        assert set(again.in_force()) == {"b"}


def test_the_words_say_how_long_and_what_for() -> None:
    words = describe(OffenceRecord((), 2, 0.0, 7200.0, "garbage"), 7200.0)
    assert "120 min" in words
    assert "time 2" in words
    assert "garbage" in words


QUICK = {"refusals": 3, "first_s": 600.0}


async def misbehave(made, device: str, base: str, times: int = 3) -> None:
    for n in range(times):
        spoiled = frame(header(device, 1, base), tensors={"head/w": np.full(64, 2e4 + n, np.float32)})
        await made.give(device, Kind.UPDATE, spoiled)


async def test_a_quarantined_device_is_refused_undecoded_and_told_seldom(tmp_path, monkeypatch) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine=QUICK) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await misbehave(made, "a", base)

        def never(*_: object) -> None:
            raise AssertionError("it was decoded")

        monkeypatch.setattr(verifier, "open_frame", never)
        good = frame(header("a", 1, base))
        for _ in range(50):
            await made.give("a", Kind.UPDATE, good)
        told = [r for r in made.link.receipts("a") if r.reason is Reason.QUARANTINED]
        assert len(told) == 1
        assert told[0].digest == digest(good)
        assert "another 600 s" in told[0].detail
        assert made.app.access.turned_away == 49
        assert ("a", "refused_again") not in made.refusals()
        assert made.refusals()["a", "quarantined"] == 1
        assert tuple(made.app.driver.state.delivered) == ()


async def test_the_refusal_that_begins_a_quarantine_says_so_to_the_device(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine=QUICK) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await misbehave(made, "a", made.app.driver.state.manifest)
        details = [receipt.detail for receipt in made.link.receipts("a")]
        assert ["quarantined from now on, for another 600 s" in words for words in details] == [
            False,
            False,
            True,
        ]


async def test_an_enrolled_device_that_never_reported_is_quarantined_and_a_made_up_name_is_not_kept(
    tmp_path,
) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine=QUICK) as made:
        made.app.admission._book = SimpleNamespace(
            standing={"enrolled": "active", "asked": "pending"}.get,
            released_at=lambda _: None,
            refresh=lambda: None,
            close=lambda: None,
        )
        for device in ("enrolled", "asked", "made-up"):
            for n in range(3):
                await made.give(device, Kind.UPDATE, b"garbage %d" % n)
        assert set(made.app.quarantine.in_force()) == {"enrolled"}


async def test_a_pointer_and_chunks_of_a_quarantined_device_open_no_upload(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine=QUICK) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await misbehave(made, "a", base)
        good = frame(header("a", 1, base))
        blob = BlobRef(digest=digest(good), size=len(good))
        pointer = BlobPointer(task="tiny", round=1, blob=blob, chunk_bytes=1024)
        await made.give("a", Kind.UPDATE, messages.encode(pointer))
        await made.give("a", Kind.UP_BLOB, good, digest(good), 0)
        assert made.link.wants("a") == []
        assert made.link.receipts("a")[-1].digest == digest(good)
        assert made.app.receiver._uploads.announced_bytes == 0
        assert tuple(made.app.driver.state.delivered) == ()


async def test_quarantine_outlives_a_restart_keeps_out_of_selection_and_is_named(tmp_path) -> None:
    task = tiny_task(count=3, min_devices=1, deadline_s=1.0)
    async with bench(tmp_path, task, quarantine=QUICK, spread_s=0.3) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("a", "b")
        base = made.app.driver.state.manifest
        await misbehave(made, "a", base)
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base)))
        await made.until(
            lambda: made.app.driver.state.round == 2 and made.app.driver.state.phase == "collecting"
        )
        assert tuple(made.app.driver.state.selected) == ("b",)
    async with bench(tmp_path, task, quarantine=QUICK) as made:
        assert made.app.quarantine.denial("a") is not None
        assert made.app.driver.able() == ("b",)
        await made.online("b", windows=0)
        await made.phase("waiting_for_devices")
        assert "a (quarantined: for another" in made.app.driver.why()
        made.app.quarantine.released_at = {"a": made.app.clock.wall() + 1}.get
        assert made.app.driver.able() == ("a",)
    found = history(tmp_path / "coordinator")["quarantine"]
    assert [row["device"] for row in found] == ["a"]
    assert found[0]["until_wall"] > found[0]["since_wall"]
    assert found[0]["reason"] == "out_of_bounds"


async def test_outliers_are_lost_told_and_not_asked_again_in_the_round(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=2, min_devices=3), spread_s=0.3) as made:
        await made.online("a", "b", "c", "d")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        for device, value in (("a", 1.0), ("b", 1.5), ("c", 0.5), ("d", -90.0)):
            await made.give(device, Kind.UPDATE, frame(header(device, 1, base), value))
        await made.until(lambda: made.app.driver.state.version == 1)
        assert [r.status for r in made.link.receipts("d")] == ["accepted", "refused"]
        assert made.link.receipts("d")[-1].reason is Reason.OUTLIER
        state = await made.app.model.state()
        assert state["head"]["head/w"][0] == pytest.approx(1.0)
        assert made.refusals()["d", "outlier"] == 1
    found = history(tmp_path / "coordinator")
    assert found["versions"][1]["devices"] == ["a", "b", "c"]
    assert "outlier" in found["rounds"][0]["updates"][3]["lost"]


async def test_too_few_without_the_outlier_wait_for_others_and_say_so(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=3)) as made:
        await made.online("a", "b", "d")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        for device, value in (("a", 1.0), ("b", 1.5), ("d", -90.0)):
            await made.give(device, Kind.UPDATE, frame(header(device, 1, base), value))
        await made.phase("waiting_for_devices")
        assert dict(made.app.driver.state.refused) == {"d": "outlier"}
        assert "d was refused: outlier" in made.app.driver.why()
        await made.online("e")
        await made.phase("collecting")
        await made.give("e", Kind.UPDATE, frame(header("e", 1, base), 0.5))
        await made.until(lambda: made.app.driver.state.version == 1)
    assert history(tmp_path / "coordinator")["versions"][1]["devices"] == ["a", "b", "e"]


async def test_two_devices_are_screened_against_the_last_round_also_after_a_restart(tmp_path) -> None:
    task = tiny_task(count=3, min_devices=1)
    async with bench(tmp_path, task, spread_s=0.3) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        for device in ("a", "b"):
            await made.give(device, Kind.UPDATE, frame(header(device, 1, base), 1.0))
        await made.until(lambda: made.app.driver.state.version == 1)
    async with bench(tmp_path, task, spread_s=0.3) as made:
        await made.online("a", "b")
        await made.until(lambda: made.app.driver.state.phase == "collecting")
        base = made.app.driver.state.manifest
        for device, value in (("a", 1.0), ("b", 80.0)):
            await made.give(device, Kind.UPDATE, frame(header(device, 2, base), value))
        await made.until(lambda: made.app.driver.state.version == 2)
        assert made.link.receipts("b")[-1].reason is Reason.OUTLIER
