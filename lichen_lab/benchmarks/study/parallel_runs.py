"""Makes many runs in worker processes, reports the time left, and keeps every finished run."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.study.run_cache import RunCache
from lichen_lab.benchmarks.study.run_spec import O, S
from protocol.errors import Transient

_SAY_EVERY_S: Final = 15.0
_LOOK_EVERY_S: Final = 5.0
_IN_MINUTES_S: Final = 90.0


def cpus() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_each(
    wanted: Mapping[str, S],
    store: RunCache[S, O],
    say: Say,
    run: Callable[[S], O],
    workers: int | None = None,
) -> dict[str, O]:
    """Outcomes by key; runs that are in the store are not made again.

    Args:
        wanted: runs by key, in the order in which to make them.
        store: takes each finished run.
        say: takes the progress and the time left.
        run: makes one run; must be importable in a worker.
        workers: processes; None: one a CPU; 1: this process.

    Raises:
        Transient: a worker was killed. Finished runs are in the store.
    """
    left = [setting for setting in wanted.values() if store.get(setting) is None]
    workers = max(1, min(workers or cpus(), len(left)))
    if len(left) < len(wanted):
        say(f"{len(wanted) - len(left)} of {len(wanted)} runs are in {store.path}")
    telling = _Telling(len(left), say)
    for setting, outcome in _made(left, run, workers):
        store.put(setting, outcome)
        telling.one_more()
    found = {key: store.get(setting) for key, setting in wanted.items()}
    return {key: outcome for key, outcome in found.items() if outcome is not None}


class _Telling:
    """Reports progress at most every :data:`_SAY_EVERY_S` seconds."""

    def __init__(self, count: int, say: Say) -> None:
        self._count = count
        self._say = say
        self._done = 0
        self._started = self._said = time.monotonic()
        if count:
            say(f"{count} runs")

    def one_more(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY_S and self._done < self._count:
            self._said = now
            left_s = (now - self._started) / self._done * (self._count - self._done)
            words = f"{left_s / 60:.0f} min" if left_s > _IN_MINUTES_S else f"{left_s:.0f} s"
            self._say(f"{self._done} of {self._count} runs, about {words} left")


def _made(left: list[S], run: Callable[[S], O], workers: int) -> Iterator[tuple[S, O]]:
    if workers == 1:
        for setting in left:
            yield setting, run(setting)
        return
    # Fresh interpreters: torch cannot be used in a fork of a process that has used it.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _settle_in, (os.getpid(),))
    waiting: dict[Future[O], S] = {}
    try:
        waiting = {pool.submit(run, setting): setting for setting in left}
        while waiting:
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(done), done.result()
    except BrokenProcessPool as error:
        raise Transient(
            "a worker of the bench was killed (out of memory?); finished runs are kept: run it again, "
            "or with --workers 1"
        ) from error
    finally:
        # On Ctrl-C, do not wait for the current runs.
        for child in multiprocessing.active_children() if waiting else ():
            child.terminate()
        pool.shutdown(cancel_futures=True)


def _settle_in(parent: int) -> None:
    """Set up a worker: ignore Ctrl-C, use one thread, end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)
