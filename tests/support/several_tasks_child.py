"""All tasks of a file with the tiny method: ``-m tests.support.several_tasks_child FILE [TASK]``.

With TASK that task alone. The run of each task has the same id in all processes, so that versions compare.
"""

import random
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from coordinator.app import open_coordinator
from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.daemon import Coordinator
from coordinator.tasks.fleet import FurtherTasks, services_of
from runtime import logs
from runtime.process.daemon import run
from tests.support.coordinator.fake import TinyJobs, TinyServer, tiny_task

ROUNDS = 3


def open_tiny(
    settings: CoordinatorSettings, *, in_threads: bool = True
) -> AbstractAsyncContextManager[Coordinator]:
    """Each task learns something else: another number of weights."""
    jobs = TinyJobs(size=64 if settings.further_task is None else 32)
    task, rng = tiny_task(count=ROUNDS, min_devices=2, deadline_s=600.0), random.Random(settings.fleet)
    return open_coordinator(settings, task, TinyServer(), jobs=jobs, rng=rng, in_threads=in_threads)


async def serve(file: Path, alone: str | None) -> int:
    settings = load_settings(file)
    logs.configure(settings.log)
    if alone is not None:
        async with open_tiny(settings.for_task(alone), in_threads=False) as one:
            return await one.run()
    async with open_tiny(settings, in_threads=False) as main:
        tasks = FurtherTasks(main, settings, open_tiny, partial(load_settings, file))
        try:
            return await main.run(services_of(main, tasks), tasks)
        finally:
            await tasks.close()


if __name__ == "__main__":
    sys.exit(run(lambda: serve(Path(sys.argv[1]), (*sys.argv[2:], None)[0])))
