"""To wait for something to its end, also where the waiting itself is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is not cancelled: a thread that writes cannot be.

    Raises:
        asyncio.CancelledError: we were cancelled; ``work`` has ended before.
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
            task.exception()  # looked at: nobody else will
        raise asyncio.CancelledError
    return task.result()
