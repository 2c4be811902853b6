"""What people see of secure rounds: the stage, who was lost at which, why a sum stayed closed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.aggregation.secure.reports import SecureReports, newest_words, reports_of
from coordinator.round_machine.device_sets import DeviceSet
from coordinator.secure_aggregation.events import SecurePhase
from coordinator.secure_aggregation.report import NAMED, SecureReport, report_of
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import Location
from lichen_lab.simulation.secure_rounds.driver import play
from lichen_lab.simulation.secure_rounds.fleet import attempt_of, fleet_of
from protocol.secure_aggregation.ring import to_words
from protocol.tasks.folding import SecureAggregation
from tests.support.secure.world import SecureWorld

OPTIONS = SecureAggregation(identities="none", min_devices=3, max_lost=0.4)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with Location.at(tmp_path).database() as made:
        yield made


def played(count: int, **lost: tuple[str, ...]) -> SecureReport:
    names = [f"d{n}" for n in range(count)]
    vectors = {name: to_words(np.zeros(4, np.int64), OPTIONS.ring_bits) for name in names}
    coordinator, devices = fleet_of(vectors, OPTIONS)
    play(coordinator, devices, lost)
    return report_of(attempt_of(), coordinator.state, set(names))


def test_who_was_lost_is_said_by_stage() -> None:
    report = played(9, keys=("d0",), shares=("d1",), masked=("d2",), unmask=("d3",))
    assert report.phase == "done"
    assert [(one.stage, one.devices) for one in report.lost] == [
        ("keys", ("d0",)),
        ("shares", ("d1",)),
        ("masked updates", ("d2",)),
        ("unmask", ("d3",)),
    ]
    counts = (report.asked, report.keys, report.shares, report.going, report.inside, report.answered)
    assert counts == (9, 8, 7, 7, 6, 5)
    lines = list(report.lines())
    assert lines[0].startswith(
        "secure aggregation: attempt 1, stage done: 8 devices with keys, 7 with shares"
    )
    assert "  lost at masked updates: d2 (sent no masked update in time)" in lines
    assert SecureReport.model_validate_json(report.model_dump_json()) == report
    assert not played(5).lost


def test_a_sum_that_stays_closed_says_why_and_names_no_stage_that_did_not_come() -> None:
    few = played(5, keys=("d0", "d1", "d2"))
    assert few.phase == "failed"
    assert few.why == "2 devices have announced keys, the task adds 3 or more"
    assert few.words.endswith(few.why)
    assert [(one.stage, one.count) for one in few.lost] == [("keys", 3)]
    late = played(5, masked=("d0", "d1", "d2"))
    assert late.phase == "failed"
    assert [one.stage for one in late.lost] == ["masked updates"]
    assert "2 of 5 masked updates came" in late.why


def test_of_many_lost_devices_some_are_named_and_all_are_counted() -> None:
    report = played(5)
    names = {f"x{n:03}" for n in range(200)}
    coordinator, _ = fleet_of({"d0": to_words(np.zeros(4, np.int64), OPTIONS.ring_bits)}, OPTIONS)
    closed = coordinator.state.model_copy(update={"phase": SecurePhase.SHARES})
    [lost] = report_of(attempt_of(), closed, names).lost
    assert (lost.count, len(lost.devices)) == (200, NAMED)
    assert lost.line.startswith("lost at keys: x000, x001, ")
    assert " and 192 more (announced no keys" in lost.line
    assert report.asked == 5


def test_reports_are_read_by_round_and_leave_with_it(store: Database) -> None:
    reports, one = SecureReports(store), played(4)
    reports.write(1, one, 1.0)
    reports.write(1, one.model_copy(update={"attempt": 2, "words": "again"}), 2.0)
    reports.write(1, one.model_copy(update={"attempt": 2, "words": "and again"}), 3.0)
    reports.write(2, one, 4.0)
    found = reports_of(store, [1, 3])
    assert [report.words for report in found[1]] == [one.words, "and again"]
    assert newest_words(store, 1) == "and again"
    assert newest_words(store, 3) == ""
    # a newer release may say more
    row = store.rows(sa.select(schema.secure_rounds.c.report))[0]["report"]
    assert SecureReport.model_validate({**row, "more": 1}) == one


async def test_the_service_reports_each_stage(tmp_path: Path, store: Database) -> None:
    world = SecureWorld(tmp_path, reports=SecureReports(store))
    seen = list[str]()

    def note(_sender: str, _message: object) -> str:
        if found := reports_of(store, [1]):
            seen.append(found[1][-1].phase)
        return ""

    world.kill_at = note
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    await world.close_round()
    await world.close()
    seen.append(reports_of(store, [1])[1][-1].phase)
    assert list(dict.fromkeys(seen)) == ["keys", "shares", "masked_updates", "unmask", "done"]
    assert newest_words(store, 1).startswith("attempt 1, stage done: 4 devices with keys")


async def test_an_attempt_that_the_round_has_left_says_so_and_names_who_was_missing(
    tmp_path: Path, store: Database
) -> None:
    world = SecureWorld(tmp_path, reports=SecureReports(store))
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    delivered = DeviceSet(["d0", "d1", "d2"])  # the fourth comes too late for the journal
    world.rounds = world.rounds.model_copy(update={"attempt": 2, "salt": "ef" * 16, "delivered": delivered})
    await world.until(lambda: len(reports_of(store, [1])[1]) == 2)
    await world.close()
    first, second = reports_of(store, [1])[1]
    assert first.phase == "failed"
    assert first.why == "the round gave the attempt up in stage masked updates: 3 of 4 came"
    assert [(one.stage, one.devices) for one in first.lost] == [("masked updates", ("d3",))]
    assert second.attempt == 2
    assert second.phase == "keys"
