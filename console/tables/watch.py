"""Reads the tables again and again, once for all viewers, and says what has changed."""

import asyncio
import math
import re
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from console.tables.connection import TablesConnection
from console.tables.device_reports import FollowedRegistry
from console.tables.marks import Mark
from console.tables.reader import ReadingPace
from console.words import digest
from coordinator.cli.status import look
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.storage.database import Database
from protocol.errors import LichenError
from runtime.waits import Wait
from runtime.web.events import EventStream

log = structlog.get_logger(__name__)

PERIOD_S: Final = 0.25
_STATUS_S: Final = 0.5
"""The status is not read more often. That of a large fleet is read less often (``console.tables.reader``);
marks are a few rows, and do not wait for it."""
_MARKED_S: Final = 0.25
"""Marks are not compared more often."""
_COUNTING: Final = re.compile(r"\d+(?:\.\d+)?(?= (?:s|min|h|d)\b)")
_COUNTED_S: Final = 5.0
"""Words that count seconds are news so often. So often the status is read though nothing was written: some of
it changes with time alone, or with files."""


@dataclass(frozen=True)
class Picture:
    """What the tables said at one moment.

    Attributes:
        wall: Unix seconds.
        trouble: why they cannot be read now; the rest is what they said before.
        status: as ``lichen coordinator status`` prints it, without its waits.
        waits: what the coordinator waits for.
        revisions: by subject; each changes with what the subject's pages show, or with ``trouble``. That of
            ``status`` changes with everything else but ``wall``, that of ``coordinator`` only when the
            coordinator starts or stops, or its tables cannot be read.
    """

    wall: float
    trouble: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    revisions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The last reading: the mark of the tables before it, and when it began, monotonic seconds."""

    mark: Hashable = None
    at: float = -math.inf

    def is_due(self, mark: Hashable, least_s: float, most_s: float = math.inf) -> bool:
        """Whether to read again: something was written, but not within ``least_s``; or ``most_s`` ago."""
        age_s = time.monotonic() - self.at
        return age_s >= most_s or (mark != self.mark and age_s >= least_s)


class TableWatch:
    """Holds the newest picture.

    Args:
        settings: of the coordinator.
        tables: its tables.
        events: hears that a subject has changed, as an event of its name with the revision.
        marks: of the subjects beside ``status``.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        tables: TablesConnection,
        events: EventStream,
        marks: Mapping[str, Mark],
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._events = events
        self._marks = marks
        self._status_read = self._marks_read = _Reading()
        self._status_pace, self._marks_pace = ReadingPace(), ReadingPace()
        self._registry = FollowedRegistry()
        self.picture = Picture(time.time(), "the tables have not been read yet")

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self.read()
            await asyncio.sleep(PERIOD_S)

    async def read(self, *, marked: bool = False) -> None:
        """Read what may have changed; ``marked``: all, whenever it was read last."""
        before = self.picture
        picture = await asyncio.to_thread(self._look, marked=marked)
        if picture.trouble and picture.trouble != before.trouble:
            log.warning("tables_not_read", why=picture.trouble)
        self._spend(before.revisions, picture.revisions)
        self.picture = picture
        self._events.publish(picture.revisions)

    def _look(self, *, marked: bool) -> Picture:
        now, old = time.time(), self.picture
        whole = marked or bool(old.trouble)
        status_read, marks_read = self._status_read, self._marks_read

        def query(store: Database) -> tuple[tuple[dict[str, Any], list[Wait]] | None, dict[str, str]]:
            nonlocal status_read, marks_read
            # Before all else: what is written meanwhile is news at the next reading.
            mark, began = self._tables.mark(store), time.monotonic()
            marks = {}
            if whole or marks_read.is_due(mark, _least_s(_MARKED_S, self._marks_pace, began)):
                marks = {name: digest(one(store, self._settings)) for name, one in self._marks.items()}
                marks_read = _Reading(mark, began)
            seen = mark, store.is_served()
            least_s = _least_s(_STATUS_S, self._status_pace, began)
            if not whole and not status_read.is_due(seen, least_s, _COUNTED_S):
                return None, marks
            cpu_s = time.thread_time()
            found = look(store, self._settings, now, self._registry)
            self._status_pace.spend(time.thread_time() - cpu_s, is_news=False)
            status_read = _Reading(seen, began)
            return found, marks

        try:
            found, marks = self._tables.read(query)
        except LichenError as error:
            self._registry = FollowedRegistry()
            revisions = dict.fromkeys(("coordinator", "status", *self._marks), digest(str(error)))
            return Picture(now, str(error), old.status, old.waits, revisions)
        self._status_read, self._marks_read = status_read, marks_read
        if found is None:
            return replace(old, wall=now, revisions={**old.revisions, **marks})
        status, waits = found
        stands = digest(status["running"], status["coordinator"])
        revisions = {
            **old.revisions,
            **marks,
            "coordinator": stands,
            "status": _revision(status, waits, now),
        }
        return Picture(now, "", status, tuple(waits), revisions)

    def _spend(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        changed = {subject for subject, revision in now.items() if before.get(subject) != revision}
        self._marks_pace.spend(0.0, is_news=bool(changed & self._marks.keys()))
        self._status_pace.spend(0.0, is_news=bool(changed - self._marks.keys()))


def _least_s(usual_s: float, pace: ReadingPace, now: float) -> float:
    """From the begin of one reading to that of the next, seconds; without end while it must wait."""
    return math.inf if pace.wait_s(now) else usual_s


def _revision(status: Mapping[str, Any], waits: list[Wait], now: float) -> str:
    """Words that count seconds would be news at each reading."""
    lasting = {key: value for key, value in status.items() if key not in {"now", "why_wall"}}
    text = repr((lasting, waits))
    still = _COUNTING.sub("", text)
    return digest(still) if still == text else digest(still, now // _COUNTED_S)
