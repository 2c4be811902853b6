"""SIGKILL in the middle of puts: what put() returned for is there, and the carry is the newest frame's."""

import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from runtime.storage.spool import Spool

ROOT = Path(__file__).parents[2]


def test_kill_nine_in_a_loop_of_puts_loses_nothing_that_returned(tmp_path):
    path, dice = tmp_path / "spool.sqlite3", random.Random(7)
    returned = 0
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.processes.spool_child", str(path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        with child:
            lines = [child.stdout.readline() for _ in range(dice.randrange(3, 12))]
            time.sleep(dice.random() * 0.01)
            child.kill()
            lines += child.stdout.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        assert int(whole[0]) in (returned + 1, returned + 2)  # +2: one was written, and not said
        returned = int(whole[-1])
        spool = Spool(path, 1 << 30)
        rounds = [e.round for e in spool.pending()]
        assert rounds == list(range(1, len(rounds) + 1))
        assert rounds[-1] in (returned, returned + 1)
        for entry in spool.pending():
            assert hashlib.sha256(spool.payload(entry.digest)).hexdigest() == entry.digest
        np.testing.assert_array_equal(spool.carry("t")["w"], np.full(500, rounds[-1], np.float32))
        assert spool._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        spool.close()
    assert not list(tmp_path.glob("*.corrupt*"))
