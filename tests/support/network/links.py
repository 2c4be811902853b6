"""Links for tests: fast back-off, and logged messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings
from tests.support.services import beside


def quick(port: int, **options: Any) -> MqttSettings:
    return MqttSettings(
        **{"port": port, "backoff_min_s": 0.05, "backoff_max_s": 0.2, "connect_timeout_s": 2.0} | options
    )


@asynccontextmanager
async def running(link: Link, *, connected: bool = True, **options: Any) -> AsyncIterator[Link]:
    """``options``: of :meth:`Link.run`."""
    async with beside(link.run(**options)):
        if connected:
            async with asyncio.timeout(10):
                await link.wait_connected()
        yield link
