"""Services that run during a test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Service = Coroutine[Any, Any, Any] | Callable[[], Coroutine[Any, Any, Any]]


@asynccontextmanager
async def beside(*services: Service, forever: bool = False) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run these until the end of the block, and cancel them; none may have failed.

    Args:
        services: what to run.
        forever: none may have ended by itself either.
    """
    tasks = [asyncio.create_task(service() if callable(service) else service) for service in services]
    await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=10)
    died = [task for task in tasks if not task.cancelled() and (forever or task.exception())]
    assert not died, f"a service failed: {died}"


async def until(true: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until ``true()`` holds, bounded."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - the condition has no event of its own
            await asyncio.sleep(0.005)
