"""A demo, and one run of it from the first file to the report."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from rich.table import Table

from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.results import Check, Results
from lichen_lab.demo.core.scenario import Options, PreparedDemo
from lichen_lab.demo.core.screen import Screen
from lichen_lab.simulation.processes import environment
from protocol.errors import Transient


@dataclass(frozen=True)
class Demo:
    """One method's demo; a module of ``lichen_lab.demo.plans`` has it as ``DEMO``.

    Attributes:
        prepare: writes everything that the processes read, and sets the stage.
        live: runs all processes, and fills in the stage's results.
        checks: all checks, the most important first.
        table: for the terminal, above the checks; None: no table.
        report: the module whose ``PAGE`` writes the page; imported at the end: matplotlib takes a second.
    """

    prepare: Callable[[Options], PreparedDemo[Any]]
    live: Callable[[DemoFleet[Any]], Awaitable[None]]
    checks: Callable[[Any, Options], list[Check]]
    table: Callable[[Any], Table | None]
    report: str


async def run(
    demo: Demo, options: Options, screen: Screen, finished: Callable[[Results], None] = lambda _: None
) -> Results:
    """The whole demo: ``report.json`` and ``report.html`` are written in the end.

    Args:
        demo: which.
        options: of the command line; with ``stay`` the fleet then runs until a signal.
        screen: shows what happens.
        finished: called once the report is written.

    Raises:
        Misconfigured: data, environment or output folder are not as they must be.
        ModuleNotFoundError: something that the demo needs later is not installed.
        Transient: something did not happen in time; the message says what was waited for.
    """
    place = await asyncio.to_thread(environment.environment, options.observer_python)
    stage: PreparedDemo[Results] = await asyncio.to_thread(demo.prepare, options)
    root, results = stage.layout.root, stage.results
    results.version, results.chaos = version("lichen"), options.chaos
    screen.say(f"data and configurations are in {root}")
    fleet = DemoFleet(stage, options, place, screen)
    try:
        async with asyncio.timeout(options.timeout_s):
            await _interruptible(demo.live(fleet))
    except TimeoutError:
        raise Transient(
            f"the demo was not over after {options.timeout_s:.0f} s; it waited for {fleet.doing}; "
            f"{fleet.why()}; --timeout-s sets the time"
        ) from None
    finally:
        results.events, results.seconds = screen.events, screen.seconds
    results.checks = demo.checks(results, options)
    results.save(root / "report.json")
    import_module(demo.report).PAGE.write(results, root / "report.html")
    finished(results)
    if options.stay:
        with suppress(asyncio.CancelledError):
            await _interruptible(fleet.stay())
    return results


async def _interruptible(course: Any) -> None:
    """Run a demo; SIGINT and SIGTERM cancel it, so that every child is stopped in order."""
    task = asyncio.ensure_future(course)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
