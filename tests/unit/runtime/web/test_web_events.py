"""Events: the newest of each name to every viewer, and no more viewers than agreed."""

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from runtime.web.events import EventStream


def lines(stream: EventStream) -> AsyncIterator[str]:
    answer = stream.answer()
    assert isinstance(answer, StreamingResponse)
    return aiter(answer.body_iterator)  # type: ignore[arg-type]


async def test_web_a_viewer_gets_the_newest_at_once_and_then_what_changes() -> None:
    stream = EventStream()
    stream.publish({"status": "1", "devices": "7"})
    stream.publish({"status": "2"})
    viewer = lines(stream)
    first = [await anext(viewer) for _ in range(3)]
    assert first == ["retry: 1000\n\n", "event: status\ndata: 2\n\n", "event: devices\ndata: 7\n\n"] or first[
        1:
    ] == ["event: devices\ndata: 7\n\n", "event: status\ndata: 2\n\n"]
    waiting = asyncio.ensure_future(anext(viewer))
    await asyncio.sleep(0)
    stream.publish({"status": "2"})  # nothing new
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.publish({"status": "3"})
    assert await waiting == "event: status\ndata: 3\n\n"


async def test_web_a_slow_viewer_misses_old_texts_and_never_the_newest() -> None:
    stream = EventStream()
    viewer = lines(stream)
    await anext(viewer)
    for number in range(100):
        stream.publish({"status": str(number)})
    assert await anext(viewer) == "event: status\ndata: 99\n\n"


async def test_web_viewers_beyond_the_limit_are_refused() -> None:
    stream = EventStream(most=1)
    viewer = lines(stream)
    await anext(viewer)
    assert stream.answer().status_code == 503
    await viewer.aclose()  # type: ignore[attr-defined]
    assert stream.answer().status_code == 200


async def test_web_a_stream_that_closes_tells_its_viewers_to_look_once_more() -> None:
    stream = EventStream()
    stream.publish({"status": "1"})
    viewer = lines(stream)
    assert [await anext(viewer) for _ in range(2)][1] == "event: status\ndata: 1\n\n"
    waiting = asyncio.ensure_future(anext(viewer))
    await asyncio.sleep(0)
    stream.close()
    assert await waiting == "event: status\ndata: closed\n\n"
    assert [one async for one in viewer] == []
    assert stream.viewers == 0
