"""Links for tests: fast back-off, and words that were logged."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings


def quick(port: int, **options: Any) -> MqttSettings:
    return MqttSettings(
        **{"port": port, "backoff_min_s": 0.05, "backoff_max_s": 0.2, "connect_timeout_s": 2.0} | options
    )


@asynccontextmanager
async def running(link: Link, *, connected: bool = True, **options: Any) -> AsyncIterator[Link]:
    """``options``: of :meth:`Link.run`."""
    task = asyncio.create_task(link.run(**options))
    try:
        if connected:
            async with asyncio.timeout(10):
                await link.wait_connected()
        yield link
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.done()
        if not task.cancelled():
            task.result()


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions are about several objects, few of them events
            await asyncio.sleep(0.01)
