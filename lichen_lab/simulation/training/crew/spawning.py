"""How worker processes start: without the caller's interrupts, and without its script."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType


@contextmanager
def without_interrupts() -> Iterator[None]:
    """A process started in here ignores Ctrl-C: its parent handles it, and ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # multiprocessing's helper is started with the first process, and lets interrupts through again
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main() -> Iterator[None]:
    """A process started in here does not run the caller's script again: it needs nothing of it.

    So a script that calls ``lichen.simulate`` needs no ``if __name__ == "__main__"``.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
