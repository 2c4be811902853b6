"""Wait for work to its end, even if the waiting task is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is not cancelled: a thread that writes cannot be.

    Raises:
        asyncio.CancelledError: the caller was cancelled; ``work`` has ended before.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # marks it as retrieved
        raise asyncio.CancelledError
    return task.result()
