"""Whom the locks of a leader's transaction hold up on PostgreSQL."""

import random
import threading

import pytest

from coordinator.lease.table import LeaseTable, fence
from coordinator.storage.database import Database
from tests.support.coordinator.fake import settings_for
from tests.support.storage.postgres import shared_server

SHORT_S, LIFE_S = 1e-6, 30.0


@pytest.fixture
def connect(tmp_path):
    """Opens connections, as of several processes."""
    storage = {"url": shared_server().url(), "schema_name": f"lease_{random.randrange(10**9)}"}
    location, opened = settings_for(tmp_path, 1, storage=storage).location, []

    def one(**how) -> Database:
        opened.append(location.database(alone=False, **how))
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
