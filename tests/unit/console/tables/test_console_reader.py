"""One reader for all viewers: it shares readings, rests while nobody looks, and outlives any trouble."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from console.tables.reader import ReadingPace, SharedReader
from protocol.errors import Misconfigured, Transient
from runtime.web.events import EventStream


class Source:
    """Counts how often it is read; ``fails`` is raised."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails: Exception | None = None
        self.may = Event()
        self.may.set()

    def read(self) -> tuple[int, str]:
        assert self.may.wait(10)
        self.reads += 1
        if self.fails is not None:
            raise self.fails
        return self.reads, str(self.reads)


@contextmanager
def running(reader: SharedReader[int]) -> Iterator[None]:
    task = asyncio.ensure_future(reader.run())
    try:
        yield
    finally:
        task.cancel()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.005)


async def test_console_reader_answers_many_viewers_with_one_reading() -> None:
    source = Source()
    reader = SharedReader("fleet", source.read, EventStream())
    source.may.clear()
    asked = [asyncio.ensure_future(reader.newest()) for _ in range(50)]
    await asyncio.sleep(0)
    source.may.set()
    assert {(await one).value for one in asked} == {1}
    assert (await reader.newest()).value == 1
    assert source.reads == 1


async def test_console_reader_rests_while_nobody_looks() -> None:
    source, events = Source(), EventStream()
    reader = SharedReader("fleet", lambda: (source.read()[0], "no news"), events, period_s=0.01)
    with running(reader):
        await asyncio.sleep(0.1)
        assert source.reads == 1, "at the start, for the first viewer"
        events.viewers = 1  # somebody has a page open
        await until(lambda: source.reads > 3)
        events.viewers = 0
        await asyncio.sleep(0.05)
        rested = source.reads
        await asyncio.sleep(0.1)
        assert source.reads <= rested + 1
        await reader.newest()  # a look wakes it
        await until(lambda: source.reads > rested + 3)


@pytest.mark.parametrize(
    "error",
    [
        Transient("the server is away"),
        Misconfigured("tables of a newer lichen"),
        sqlite3.DatabaseError("malformed"),
        PermissionError("not ours"),
        KeyError("a column"),
        ValueError("no number"),
    ],
)
async def test_console_reader_says_what_is_wrong_keeps_what_it_has_and_comes_back(error: Exception) -> None:
    source, events = Source(), EventStream()
    reader = SharedReader("fleet", source.read, events)
    source.fails = error
    await reader.again()
    assert reader.reading.value is None
    assert reader.reading.trouble
    source.fails = None
    await reader.again()
    good = reader.reading
    assert (good.value, good.trouble) == (2, "")
    source.fails = error
    await reader.again()
    bad = reader.reading
    assert bad.value == 2
    assert str(error.args[0]) in bad.trouble
    assert bad.revision != good.revision
    source.fails = None
    await reader.again()
    assert (reader.reading.value, reader.reading.trouble) == (4, "")


async def test_console_reader_tells_viewers_only_of_changes() -> None:
    told: list[dict[str, str]] = []

    class Heard(EventStream):
        def publish(self, events: object) -> None:
            told.append(dict(events))  # type: ignore[call-overload]

    same = SharedReader("fleet", lambda: (1, "same"), Heard())
    await same.again()
    await same.again()
    assert told == [{"fleet": "same"}] * 2, "the stream itself drops a text that it has sent"


def test_console_pace_bounds_the_share_of_a_core_and_the_news() -> None:
    def readings(cpu_s: float, *, is_news: bool, period_s: float = 0.25, until: float = 1000.0) -> int:
        pace, now, count = ReadingPace(), 0.0, 0
        while now < until:
            pace.spend(cpu_s, is_news=is_news)
            count += 1
            now += max(period_s, pace.wait_s(now))
        return count

    assert readings(0.01, is_news=False) == 4000, "a short reading waits for nothing"
    assert readings(0.5, is_news=False) * 0.5 <= 0.05 * 1000 + 1.0, "a long one takes a twentieth of a core"
    assert readings(0.01, is_news=True) <= 1000 + 5, "news without end come once a second"
    assert readings(0.01, is_news=True, until=1.0) == 4, "the first ones come at once"
