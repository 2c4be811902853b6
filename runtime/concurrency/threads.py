"""A thread pool for one kind of work, so that it does not wait for the work of ``asyncio.to_thread``."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A few threads, started when they are needed.

    Args:
        name: of the threads, as process listings show it.
        most: the number of threads.
    """

    def __init__(self, name: str, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Run a function as ``asyncio.to_thread`` does, in one of these threads."""
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._pool, partial(context.run, work, *args, **more))

    def close(self) -> None:
        """Accept no more work; running work ends by itself."""
        self._pool.shutdown(wait=False)
