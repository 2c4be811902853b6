import asyncio
import json
import logging

import pytest
import structlog

from runtime.clock import SystemClock
from runtime.logs import configure
from runtime.settings.load import LogSettings
from tests.support.clock import ManualClock


async def test_the_manual_clock_wakes_sleepers_in_the_order_of_their_times():
    clock = ManualClock(start=100.0, wall=1000.0)
    seen = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.now()))

    async def twice() -> None:
        await sleeper("c1", 1)
        await sleeper("c2", 1)

    tasks = [asyncio.create_task(t) for t in (sleeper("a", 3), sleeper("b", 1.5), twice(), sleeper("z", 0))]
    await clock.advance(2.5)
    assert seen == [("z", 100.0), ("c1", 101.0), ("b", 101.5), ("c2", 102.0)]
    assert clock.wall() - clock.now() == 900.0
    tasks[0].cancel()
    await clock.advance(10)
    assert len(seen) == 4
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_system_clock_is_monotonic_and_sleeps():
    clock = SystemClock()
    before = clock.now()
    await clock.sleep(0.01)
    assert clock.now() - before >= 0.009
    assert clock.wall() > 1_600_000_000


@pytest.fixture
def _logging_as_it_was():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_logging_as_it_was")
def test_json_lines_on_stderr_also_from_libraries_and_below_the_level_nothing(capsys):
    configure(LogSettings(level="info", format="auto"))
    log = structlog.get_logger("x")
    log.debug("unheard")
    log.info("heard", digest="ab", path=ValueError("odd"))
    logging.getLogger("library").warning("careful %s", "now")
    logging.getLogger("library").info("unheard")
    log.error("failed", exc_info=ZeroDivisionError("boom"))
    out, err = capsys.readouterr()
    assert out == ""
    heard, library, failed = map(json.loads, err.splitlines())
    assert heard["event"] == "heard"
    assert heard["level"] == "info"
    assert heard["timestamp"].endswith("Z")
    assert library["event"] == "careful now"
    assert library["logger"] == "library"
    assert "ZeroDivisionError: boom" in failed["exception"]


@pytest.mark.usefixtures("_logging_as_it_was")
def test_console_lines(capsys):
    configure(LogSettings(format="console"))
    structlog.get_logger().info("hello", round=3)
    assert "hello" in capsys.readouterr().err
