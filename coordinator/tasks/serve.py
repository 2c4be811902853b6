"""``lichen coordinator serve``: all tasks of a fleet, from the settings to an exit status."""

from collections.abc import Callable
from functools import partial

from coordinator.app import open_coordinator
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.task import load_task
from coordinator.tasks.fleet import FurtherTasks, services_of
from coordinator.tasks.runner import open_task
from runtime import logs
from runtime.clock import SystemClock
from runtime.process import garbage
from runtime.process.worker_turns import WorkerTurns


async def serve(settings: CoordinatorSettings, reread: Callable[[], CoordinatorSettings]) -> int:
    """Run the main task and all further ones until a signal, or until all rounds of all tasks are over.

    Args:
        settings: of the file.
        reread: reads the file again, at SIGHUP.

    Raises:
        Misconfigured: the main task, its method's options or its state folder.
    """
    logs.configure(settings.log)
    garbage.collect_seldom()
    task, spec = load_task(settings)
    turns, clock = WorkerTurns(settings.worker.processes), SystemClock()
    async with open_coordinator(settings, task, spec.server(), clock=clock, turns=turns) as main:
        tasks = FurtherTasks(main, settings, partial(open_task, turns, clock), reread)
        try:
            return await main.run(services_of(main, tasks), tasks)
        finally:
            await tasks.close()
