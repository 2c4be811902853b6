"""Whom the locks of a leader's transaction hold up on PostgreSQL."""

import random
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from coordinator.audit.tables import OPERATORS
from coordinator.diagnosis.device_logs import DEVICE_LOGS
from coordinator.lease import table as lease_table
from coordinator.lease.table import LeaseTable, fence
from coordinator.rollout.store import ROLLOUTS
from coordinator.storage.database import Database
from coordinator.storage.engines.postgres_address import SUFFIXES
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from tests.support.coordinator.fake import settings_for
from tests.support.storage.hung_session import HungSession
from tests.support.storage.postgres import USER, shared_server

SHORT_S, LIFE_S = 1e-6, 30.0
Connect = Callable[..., Database]
LOCKS = "SELECT * FROM leases FOR UPDATE"


@pytest.fixture
def place() -> str:
    """The name of a schema."""
    return f"lease_{random.randrange(10**9)}"


@pytest.fixture
def connect(tmp_path, place):
    """Opens connections, as of several processes."""
    opened = []

    def one(schema: str = place, *, url: str = "", **how) -> Database:
        storage = {"url": url or shared_server().url(), "schema_name": schema}
        opened.append(settings_for(tmp_path, 1, storage=storage).location.database(alone=False, **how))
        return opened[-1]

    yield one
    for store in opened:
        store.close()


def test_a_renewal_does_not_wait_for_a_transaction_of_its_own_leader_and_a_taker_does(connect):
    table, taker, waits = LeaseTable(connect(), "lead", SHORT_S), LeaseTable(connect(), "lead", LIFE_S), []
    mine, _, _ = table.take("a")
    assert mine is not None
    leader = connect(fence=fence("lead", mine.epoch))
    with leader.transaction() as connection:
        fence("lead", mine.epoch)(connection)  # as at the end, before the commit
        renewed = table.renew(mine)
        assert renewed is not None
        thread = threading.Thread(target=lambda: waits.append(taker.take("b")))
        thread.start()
        thread.join(0.3)
        assert waits == []
        leader.put_meta({"written_by": "a"})
    thread.join(20)
    assert waits[0][0] is not None
    assert waits[0][0].epoch == mine.epoch + 1
    assert connect().get_meta("written_by") == "a", "no write of an epoch follows one of the next"


def test_the_locks_of_a_process_that_hangs_in_a_transaction_end_within_a_lease(connect):
    shown = []
    for store in (connect(), connect(fence=lambda _: None)):
        with store.transaction() as connection:
            shown.append(connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one())
    assert shown == ["5s", "5s"]


def test_who_takes_a_lease_waits_for_no_session_that_hangs_in_the_middle_of_a_statement(
    connect: Connect, place: str
) -> None:
    table, taker = LeaseTable(connect(), "lead", SHORT_S), LeaseTable(connect(), "lead", SHORT_S)
    mine, _, _ = table.take("a")
    assert mine is not None
    with closing(
        HungSession(shared_server(), place, LOCKS)
    ):  # PostgreSQL's limit for idle transactions does not end it
        theirs, _, _ = taker.take("b")
    assert theirs is not None
    assert theirs.epoch == mine.epoch + 1


def test_a_leader_ends_sessions_that_hang_with_locks_and_no_others(
    connect: Connect, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LeaseTable(connect(), "lead", LIFE_S)
    mine, _, _ = table.take("a")
    assert mine is not None
    connect().put_meta({"a": "b"})
    locking = HungSession(shared_server(), place, "UPDATE meta SET value = value")
    beside = HungSession(
        shared_server(), place, "LOCK updates IN ROW SHARE MODE", name=f"lichen {place}_rollout"
    )
    reading = HungSession(shared_server(), place, "SELECT * FROM meta")
    elsewhere = HungSession(shared_server(), place, "SELECT 1", half=False)
    persons = HungSession(shared_server(), place, "LOCK updates IN ROW SHARE MODE", name="psql", half=False)
    connect(f"{place}_2")
    other_fleets = HungSession(shared_server(), f"{place}_2", "LOCK updates IN ROW SHARE MODE")
    sessions = (locking, beside, reading, elsewhere, persons, other_fleets)
    try:
        assert table.renew(mine) is not None
        assert all(one.lives() for one in sessions), "each moved a moment ago"
        monkeypatch.setattr(lease_table, "HUNG_S", 0.0)
        assert table.renew(mine) is not None
        connect().put_meta({"a": "c"})  # waits for no lock
        assert [one.lives() for one in sessions] == [False, False, True, True, True, True]
    finally:
        for one in sessions:
            one.close()


def test_a_fleets_further_schemas_are_those_of_its_stores() -> None:
    designs = (DEVICE_LOGS, IDENTITIES, OPERATORS, ROLLOUTS)
    assert sorted(design.suffix for design in designs) == sorted(SUFFIXES)


def test_a_server_that_lets_nobody_end_sessions_gives_leases_all_the_same(
    connect: Connect, place: str
) -> None:
    server = shared_server()
    server.sql(f"CREATE ROLE {place} LOGIN", f"CREATE DATABASE {place} OWNER {place}")
    forbid = "REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC"
    server.sql(forbid, database=place)
    with capture_logs() as logs:
        table = LeaseTable(connect(url=server.url(place).replace(f"{USER}@", f"{place}@")), "lead", LIFE_S)
        mine, _, _ = table.take("a")
        assert mine is not None
        assert table.renew(mine) is not None
    assert [one["event"] for one in logs].count("sessions_not_ended") == 1
