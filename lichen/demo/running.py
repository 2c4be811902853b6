"""One demo run from the first file to the report, whatever is shown."""

import asyncio
import signal
from importlib.metadata import version
from typing import Any, cast

from lichen.demo import observer
from lichen.demo.fleet import Fleet
from lichen.demo.kind import Demo, Stage, Told
from lichen.demo.plan import Options
from lichen.demo.screen import Screen
from protocol.errors import Transient


async def run(demo: Demo, options: Options, screen: Screen) -> Told:
    """The whole demo.

    Raises:
        Misconfigured: data, environment or output folder are not as they must be.
        Transient: something did not happen in time; the message says what was waited for.
    """
    place = await asyncio.to_thread(observer.environment, options.observer_python)
    stage = cast("Stage", await asyncio.to_thread(demo.prepare, options, version("lichen")))
    screen.say(f"data and configurations are in {stage.layout.root}")
    story: Told = stage.story
    fleet = Fleet(stage, options, place, screen)
    try:
        async with asyncio.timeout(options.timeout_s):
            await _interruptible(demo.live(fleet))
    except TimeoutError:
        raise Transient(
            f"the demo was not over after {options.timeout_s:.0f} s; it waited for {fleet.doing}; "
            f"{fleet.why()}; --timeout-s sets the time"
        ) from None
    finally:
        story.events, story.seconds = screen.events, screen.seconds
    story.checks = demo.checks(story, options)
    demo.write(stage)
    return story


async def _interruptible(course: Any) -> None:
    """SIGINT and SIGTERM cancel the course, so that every child is stopped in order."""
    task = asyncio.ensure_future(course)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
