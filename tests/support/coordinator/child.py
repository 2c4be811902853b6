"""The coordinator with the tiny method as a process: ``-m tests.support.coordinator.child ARGS.json``.

``role``: ``serve``, ``lead`` or ``ingest``. ``slow``: a step (initial, fold, evaluate, export) that takes
longer than any test, to be killed in it.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from coordinator.app import run as run_coordinator
from coordinator.cluster.app import Outer, run_ingest, run_lead
from protocol.tasks.task import Task
from runtime import logs
from runtime.process.daemon import run
from runtime.storage import sqlite
from tests.support.coordinator.fake import TinyFold, TinyJobs, TinyServer, settings_for

LONG_S = 60.0


class SlowFold(TinyFold):
    def fold(self, _) -> None:
        time.sleep(LONG_S)


class SlowServer(TinyServer):
    def open(self, _task, _round, state):
        return SlowFold(state)


class SlowJobs(TinyJobs):
    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = slow

    async def initial(self):
        await self._wait("initial")
        return await super().initial()

    async def evaluate(self, state):
        await self._wait("evaluate")
        return await super().evaluate(state)

    async def export(self, state, lineage):
        await self._wait("export")
        return await super().export(state, lineage)

    async def features(self):
        await self._wait("features")
        return await super().features()

    async def _wait(self, step: str) -> None:
        if step == self.slow:
            await asyncio.sleep(LONG_S)


def main(file: str) -> int:
    args = json.loads(Path(file).read_text())
    sqlite.WAIT_S = args.get("wait_s", sqlite.WAIT_S)
    root = Path(args["root"])
    settings = settings_for(root, args["port"], **args["settings"])
    logs.configure(settings.log)
    server = SlowServer() if args["slow"] == "fold" else TinyServer()

    async def start() -> int:
        task, jobs = Task.model_validate(args["task"]), SlowJobs(args["slow"])
        match args.get("role", "serve"):
            case "lead":
                return await run_lead(settings, task, server, Outer(jobs=jobs))
            case "ingest":
                return await run_ingest(settings, task, server)
            case _:
                return await run_coordinator(settings, task, server, jobs=jobs)

    return run(start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
