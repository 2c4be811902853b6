"""One thing that is read from the tables again and again, once for all viewers, while somebody looks."""

import asyncio
import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from console.words import digest
from protocol.errors import LichenError
from runtime.pacing import TokenBucket
from runtime.web.events import EventStream

log = structlog.get_logger(__name__)
T = TypeVar("T")

_SHARE: Final = 0.05
"""Of one core: a reader takes more only for ``_AT_ONCE_S`` seconds of CPU in all."""
_AT_ONCE_S: Final = 0.2
_IDLE_S: Final = 30.0
"""Without a look for so long, and without a viewer of events, nothing is read."""
_POLL_S: Final = 1.0
_NEWS_AT_ONCE: Final = 4
_NEWS_A_SECOND: Final = 1.0
"""News of one reader: so many at once, then so many a second. Each makes every open page fetch itself."""


class ReadingPace:
    """When one reader may read again."""

    def __init__(self) -> None:
        self._seconds = TokenBucket(_AT_ONCE_S, _SHARE)
        self._news = TokenBucket(_NEWS_AT_ONCE, _NEWS_A_SECOND)

    def spend(self, cpu_s: float, *, is_news: bool) -> None:
        """After a reading: its CPU time, and whether pages will fetch themselves."""
        self._seconds.spend(cpu_s)
        if is_news:
            self._news.spend()

    def wait_s(self, now: float) -> float:
        """The least pause, from ``now`` (monotonic seconds)."""
        return max(self._seconds.wait_s(now, 0.0), self._news.wait_s(now))


@dataclass(frozen=True)
class SharedReading(Generic[T]):
    """What was read.

    Attributes:
        wall: when, Unix seconds.
        value: None: it could not be read yet.
        trouble: why it cannot be read now; ``value`` is then what was read before.
        revision: changes with the value and the trouble.
    """

    wall: float
    value: T | None = None
    trouble: str = ""
    revision: str = ""


class SharedReader(Generic[T]):
    """Holds the newest reading.

    Args:
        subject: the event that says that it has changed, with the revision.
        read: reads, in a thread; the value, and a text that changes with it.
        events: hears the event.
        period_s: the shortest pause between two readings.
    """

    def __init__(
        self, subject: str, read: Callable[[], tuple[T, str]], events: EventStream, *, period_s: float = 1.0
    ) -> None:
        self._subject = subject
        self._read = read
        self._events = events
        self._period_s = period_s
        self._looked = -math.inf
        self._began = -math.inf
        self._one = asyncio.Lock()
        self._wake = asyncio.Event()
        self._pace = ReadingPace()
        self.reading: SharedReading[T] = SharedReading(time.time())

    async def newest(self) -> SharedReading[T]:
        """The newest reading; waits for one if nobody looked for a while."""
        self._looked = time.monotonic()
        self._wake.set()
        await self.again(max(_IDLE_S, 2 * self._period_s))
        return self.reading

    async def again(self, fresh_s: float = 0.0) -> None:
        """Read once, unless the newest reading began at most ``fresh_s`` before the call, or after it."""
        asked = time.monotonic()
        if self._began > asked - fresh_s:
            return
        async with self._one:
            if self._began > asked - fresh_s:
                return
            began, before = time.monotonic(), self.reading.revision
            self.reading, cpu_s = await asyncio.to_thread(self._timed, self.reading)
            self._began = began
            self._pace.spend(cpu_s, is_news=self.reading.revision != before)
        self._events.publish({self._subject: self.reading.revision})

    async def run(self, *, at_start: bool = True) -> None:
        """Read for ever while somebody looks; ``at_start``: also now, so that the first viewer waits less."""
        if at_start:
            await self.again()
        while True:
            if not self._wanted():
                self._wake.clear()
                try:
                    await asyncio.wait_for(self._wake.wait(), _POLL_S)
                except TimeoutError:
                    continue
            await self.again()
            await asyncio.sleep(max(self._period_s, self._pace.wait_s(time.monotonic())))

    def _wanted(self) -> bool:
        return self._events.viewers > 0 or time.monotonic() - self._looked < _IDLE_S

    def _timed(self, before: SharedReading[T]) -> tuple[SharedReading[T], float]:
        began = time.thread_time()
        return self._look(before), time.thread_time() - began

    def _look(self, before: SharedReading[T]) -> SharedReading[T]:
        try:
            value, revision = self._read()
        except (LichenError, SQLAlchemyError, sqlite3.Error, OSError) as error:
            trouble = str(error)[:500]
        except (
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
        ) as error:  # rows that another release wrote
            trouble = f"{self._subject}: rows of the tables are not as expected: {error!r}"[:500]
        else:
            return SharedReading(time.time(), value, "", revision)
        if trouble != before.trouble:
            log.warning("tables_not_read", what=self._subject, why=trouble)
        return SharedReading(time.time(), before.value, trouble, digest(trouble, before.revision))
