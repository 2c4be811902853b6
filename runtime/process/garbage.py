"""The garbage collector while a daemon loads what it holds as long as it lives."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
