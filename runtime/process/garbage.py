"""The garbage collector of daemons with much in memory: seldom, and never while they load it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SELDOM: Final = (2_000, 10, 50)
"""``gc.set_threshold``: Python has (700, 10, 10)."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage meanwhile, and leave what is there at the end out of all later collections.

    Without it the collector visits all objects again and again while they become more, and a full collection
    of a coordinator that knows 100,000 devices stops its event loop.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def collect_seldom() -> None:
    """Collect all objects about a tenth as often as by default: that stops the loop, and cycles are few.

    Middle-aged objects are not collected more seldom: they would be too many at a time.
    """
    gc.set_threshold(*_SELDOM)
