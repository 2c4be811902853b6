"""Passes samples from a thread that waits for hardware to the event loop; bounded, stamped at the read.

A read of a sensor may block (a slow bus, a driver that hangs), and an arrival time is only right if it is
taken at once. So each such source reads in a thread of its own. The thread never waits for the event loop: if
the loop is slow and the buffer is full, the oldest rows are dropped and counted.
"""

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, MutableMapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.data.streams.batches import Batch, SampleBatch
from runtime.mqtt.inbox import post

MAX_VALUES: Final = 1 << 18
"""Values that may wait for the event loop (3 MB with their times): a minute of 6 channels at 700 Hz."""
PAUSE_S: Final = 0.1
"""The loop is woken at most this often, so that single rows are handed over together."""
_STOP_TIMEOUT_S: Final = 2.0


class ThreadOutlet:
    """The thread's end of the buffer.

    Args:
        loop: the reader.
        counters: ``dropped_samples`` counts here.
        limit: values that may wait.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, counters: MutableMapping[str, float], limit: int = MAX_VALUES
    ) -> None:
        self._loop = loop
        self._counters = counters
        self._limit = limit
        self._rows: deque[tuple[str, NDArray[np.float64], NDArray[np.float32]]] = deque()
        self._waiting = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake_r, self._wake_w = os.pipe()
        self._open = True
        self._error: BaseException | None = None
        self.ended = False
        self.filled = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """Whether the thread must end."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep; True if the thread must end."""
        return self._stop.wait(max(0.0, seconds))

    @property
    def waiting_values(self) -> int:
        """Values that wait for the event loop: a source that can wait (a file) waits while they are many."""
        with self._lock:
            return self._waiting

    def readable(self, fd: int, seconds: float) -> bool:
        """Wait for bytes on ``fd``. A closed peer counts as readable: the read reports it."""
        return bool(self.readable_of((fd,), seconds))

    def readable_of(self, fds: Iterable[int], seconds: float) -> list[int]:
        """Wait for bytes on one of ``fds``; those that have some. A closed peer counts as readable."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN | select.POLLPRI)
        poll.register(self._wake_r, select.POLLIN)
        return [fd for fd, _ in poll.poll(max(0.0, seconds) * 1000) if fd != self._wake_r]

    def put(self, modality: str, t: NDArray[np.float64], values: NDArray[np.float32]) -> None:
        """Hand over rows: ``t`` (n,) s and ``values`` (n, C), which must not be written to any more."""
        if not len(t):
            return
        with self._lock:
            self._rows.append((modality, t, values))
            self._waiting += values.size
            while self._waiting > self._limit and len(self._rows) > 1:
                _, old_t, old_values = self._rows.popleft()
                self._waiting -= old_values.size
                self._counters["dropped_samples"] = self._counters.get("dropped_samples", 0) + len(old_t)
            first = len(self._rows) == 1
        if first:
            post(self._loop, self.filled.set)

    def take(self) -> Iterator[Batch]:
        """The waiting rows, one batch for each modality, and for each size if the task has changed it."""
        with self._lock:
            rows, self._rows, self._waiting = self._rows, deque(), 0
        alike: dict[tuple[str, int], list[tuple[NDArray[np.float64], NDArray[np.float32]]]] = {}
        for name, t, values in rows:
            alike.setdefault((name, values.shape[1]), []).append((t, values))
        for (name, _), parts in alike.items():
            yield SampleBatch(
                name, np.concatenate([t for t, _ in parts]), np.concatenate([v for _, v in parts])
            )

    def run(self, work: Callable[["ThreadOutlet"], None]) -> None:
        """Body of the thread."""
        try:
            work(self)
        except BaseException as error:  # noqa: BLE001 - raised again in the event loop
            self._error = error
        finally:
            with self._lock:
                self._open = False
                os.close(self._wake_r)
                os.close(self._wake_w)
            self.ended = True
            post(self._loop, self.filled.set)

    def stop(self) -> None:
        """Make the thread end, also if it waits in :meth:`readable`."""
        self._stop.set()
        with self._lock:
            if self._open:
                os.write(self._wake_w, b"x")

    async def stop_and_wait(self) -> None:
        """Stop, and wait a limited time for the end of the thread: a driver may hang in it for ever."""
        self.stop()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                while not self.ended:
                    await self.filled.wait()
                    self.filled.clear()
        except TimeoutError:
            return

    def result(self) -> None:
        """Raise the error of the thread, if any."""
        if self._error is not None:
            raise self._error


async def read_in_thread(
    work: Callable[[ThreadOutlet], None],
    name: str,
    counters: MutableMapping[str, float],
    limit: int = MAX_VALUES,
) -> AsyncGenerator[Batch, None]:
    """Run blocking ``work`` in a thread, and yield its rows, until it ends or the generator is closed.

    Raises:
        BaseException: the error of ``work``, after the rows before it.
    """
    outlet = ThreadOutlet(asyncio.get_running_loop(), counters, limit)
    # A daemon thread: a driver that hangs in a read must not delay the end of the process.
    thread = threading.Thread(target=outlet.run, args=(work,), name=name[:15], daemon=True)
    thread.start()
    try:
        while True:
            await outlet.filled.wait()
            outlet.filled.clear()
            ended = outlet.ended
            for batch in outlet.take():
                yield batch
            if ended:
                outlet.result()
                return
            await asyncio.sleep(PAUSE_S)
    finally:
        await outlet.stop_and_wait()
