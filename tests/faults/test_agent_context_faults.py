"""Windows with contexts, where power, disk and sensors let the store down."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from edge_agent.config.agent import read
from edge_agent.sources import SampleBatch
from edge_agent.windows.collector import Collector
from models.data import window_set
from runtime.concurrency.signals import Signal
from runtime.process.daemon import Progress
from tests.support.agent.data import motion
from tests.support.clock import ManualClock
from tests.support.services import beside, until
from tests.unit.edge_agent.messaging.test_agent_session import config
from tests.unit.edge_agent.windows.test_agent_contexts import TASK, context_of, make, same_contexts, windows

CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.unit.edge_agent.windows.test_agent_contexts import make, windows
store, k = make(Path(sys.argv[1])), 0
while True:
    store.add(windows([k % 3] * 8, k)); store.commit(); k += 1
    print(k, flush=True)
"""


def test_a_kill_in_the_middle_leaves_every_commit_with_its_contexts(tmp_path):
    root = str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), root], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            if int(line) >= 10:
                break
        time.sleep(0.007)
        os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    store = make(tmp_path)
    total = store.snapshot().total
    assert total >= 80
    assert total % 8 == 0
    found = store.recent(total)
    same_contexts(found, window_set.concat([windows([k % 3] * 8, k) for k in range(total // 8)]))
    store.close()


def test_a_context_that_rotted_costs_the_file_and_not_the_agent(tmp_path):
    store = make(tmp_path)
    store.add(windows([0, 1, 2, 0]))
    store.commit()
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE windows SET context = x'ffffff7f00000000' WHERE id = 2")
    db.close()
    assert len(store.recent(10)) == 0, "it is moved aside, and a new one begun"
    assert len(list(tmp_path.glob("*.corrupt-1"))) == 1
    given = windows([1, 2])
    store.add(given)
    same_contexts(store.recent(10), given)
    store.close()


def test_a_full_disk_keeps_contexts_in_memory_until_there_is_room(tmp_path):
    store = make(tmp_path)
    store.add(windows([0]))
    assert store.commit()
    assert store._db is not None
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    given = windows([0, 1, 2] * 30, 1)
    store.add(given)
    assert not store.commit()
    same_contexts(store.recent(90), given)
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.commit()
    same_contexts(store.recent(90), given)
    store.close()


class Cable:
    """A source that is pulled out and plugged in again."""

    name, channels = "cable", {"acc": 3, "gyr": 2}

    def __init__(self) -> None:
        self.queue = asyncio.Queue()

    async def samples(self):
        while (batch := await self.queue.get()) is not None:
            yield batch
        raise OSError("the cable was pulled out")

    def play(self, begin: float, end: float) -> None:
        for name, rate in (("acc", 50), ("gyr", 25)):
            stream = motion(end, rate, self.channels[name])
            part = stream.t >= begin
            self.queue.put_nowait(SampleBatch(name, stream.t[part], stream.values[part]))


async def test_no_context_reaches_over_the_time_in_which_a_sensor_was_away(tmp_path):
    clock, cable = ManualClock(), Cable()
    collector = Collector(
        read(config(tmp_path)),
        [cable],
        clock=clock,
        listener=lambda _: None,
        changed=Signal(),
        progress=Progress(),
    )
    await collector.use(TASK)
    work = collector.workspace
    assert work is not None
    async with beside(*(part for part in (collector.run_source(cable), collector.run()))):
        cable.play(0, 20)
        await until(lambda: work.store.snapshot().total == 14)
        cable.queue.put_nowait(None)
        await until(lambda: collector.restarts == {"cable": 1})
        await clock.advance(60)
        cable.play(40, 60)
        await until(lambda: work.store.snapshot().total >= 27)
        found = await asyncio.to_thread(work.store.recent, 100, labelled=False)
        window_set.check(found, TASK)
        points_B = context_of(found).points_BM[:, 0]
        assert (points_B[2:14] == 256).all()
        back = int(np.flatnonzero(points_B[14:] < 256)[0]) + 14
        whole = np.flatnonzero(points_B[back:] == 256)[0]
        assert whole in {2, 3}, "it begins anew after the gap, and is whole after two strides"
        assert (points_B[back + whole :] == 256).all()
