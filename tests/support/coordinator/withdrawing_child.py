"""A coordinator of the toy task: ``-m tests.support.coordinator.withdrawing_child FOLDER PORT [die]``.

With ``die`` it kills itself (SIGKILL) just before it tells a device that its accepted update is withdrawn:
this is in the database, but was not sent.
"""

import os
import random
import signal
import sys
from pathlib import Path

from coordinator.app import open_coordinator
from coordinator.messaging.receipts import ReceiptSender
from lichen_lab.simulation.deterministic.scenario.toy_method import ToyJobs, server_half, toy_task
from protocol.tasks.links import Uplink
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from runtime import logs
from runtime.clock import SystemClock
from runtime.process.daemon import run
from tests.support.coordinator.fake import FLEET, settings_for

HEAD = 64


class Hasty(random.Random):
    """Work takes no time."""

    def uniform(self, a: float, b: float) -> float:
        return min(a, b)


def task() -> Task:
    """One round that waits long for two devices."""
    return toy_task(Rounds(count=1, min_devices=2, deadline_s=600.0, min_windows=1), Uplink(), 1)


class Dying(ReceiptSender):
    def send_refused(self, *what: object) -> None:
        del what
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, port: str, die: str = "") -> int:
    settings = settings_for(Path(folder), int(port), fleet=FLEET)
    logs.configure(settings.log)

    async def start() -> int:
        clock = SystemClock()
        jobs = ToyJobs(task(), HEAD, clock, Hasty(1), 0.0)
        server = server_half(task(), routed=False)
        async with open_coordinator(settings, task(), server, jobs=jobs, clock=clock) as app:
            if die:
                app.receipts.__class__ = Dying
            return await app.run()

    return run(start)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
