"""Server-sent events: one writer, any number of viewers, each with the newest state only."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.responses import PlainTextResponse, Response, StreamingResponse

HEARTBEAT_S: Final = 15.0
"""A comment is sent after so long, so that a connection that is gone is noticed."""


class EventStream:
    """Events by name, each with a text of one line. A slow viewer misses old texts, never the newest.

    Args:
        most: viewers at a time.
    """

    def __init__(self, most: int = 200) -> None:
        self._most = most
        self._texts: dict[str, tuple[int, str]] = {}
        self._count = 0
        self._changed = asyncio.Event()
        self._is_closed = False
        self.viewers = 0

    def publish(self, events: Mapping[str, str]) -> None:
        """Send an event to all viewers, if its text is another than the last one's; from the event loop."""
        news = {name: text for name, text in events.items() if self._texts.get(name, (0, None))[1] != text}
        if not news:
            return
        self._count += 1
        self._texts |= {name: (self._count, text) for name, text in news.items()}
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Send each event once more, and end all streams: viewers look again, and ask for another stream."""
        self.publish(dict.fromkeys(self._texts, "closed"))
        self._is_closed = True
        self._changed.set()

    def answer(self) -> Response:
        """The answer to a viewer: the newest event of each name at once, then what changes."""
        if self.viewers >= self._most:
            return PlainTextResponse("too many viewers\n", 503, {"retry-after": "30"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._stream(), headers=headers, media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        self.viewers += 1
        try:
            known = 0
            yield "retry: 1000\n\n"
            while True:
                changed, now = self._changed, self._count
                for name, (count, text) in list(self._texts.items()):
                    if count > known:
                        yield f"event: {name}\ndata: {text}\n\n"
                known = now
                if self._is_closed:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self.viewers -= 1
