"""Threads for one kind of work, which waits for no other: beside those of ``asyncio.to_thread``."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A few threads; they are made when they are needed.

    Args:
        name: of the threads, for people who look at a process.
        most: so many.
    """

    def __init__(self, name: str, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """As ``asyncio.to_thread``, in one of these."""
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._pool, partial(context.run, work, *args, **more))

    def close(self) -> None:
        """Take no more work; what is under way ends by itself."""
        self._pool.shutdown(wait=False)
