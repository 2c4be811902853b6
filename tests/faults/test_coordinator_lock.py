"""One coordinator a state folder: a look from outside is not taken for another one."""

import fcntl
import os
import threading

import pytest

from coordinator.storage.database import Database
from protocol.errors import Misconfigured


def test_who_only_looks_keeps_no_coordinator_from_starting(tmp_path) -> None:
    """``lichen coordinator status`` has the lock for an instant, and so has one that is just stopping."""
    path = tmp_path / "coordinator.sqlite3"
    handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_SH)
    timer = threading.Timer(0.1, os.close, (handle,))
    timer.start()
    try:
        Database(path).close()
    finally:
        timer.join()


def test_a_second_coordinator_is_told_so_and_the_first_stays(tmp_path) -> None:
    path = tmp_path / "coordinator.sqlite3"
    store = Database(path)
    with pytest.raises(Misconfigured, match="another coordinator runs on this state_dir"):
        Database(path)
    assert store.get_meta("task") is None
    store.close()
    Database(path).close()
