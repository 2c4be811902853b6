"""The agent's end of a socket to a servant: one request at a time, on the event loop, without a thread."""

import asyncio
import socket
from typing import Any

import numpy as np

from edge_agent.inference.serving.codec import KEPT, MAX_BODY, Arrays, Header, decode, encode, lengths
from edge_agent.inference.serving.host import Answer, ChannelClosed
from protocol.errors import Refused

_PREFIX = 8


class Channel:
    """Sends requests, and waits for answers.

    Args:
        sock: connected; owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(KEPT)
        self._got = 0
        self._max_body = 0
        self._waiter: asyncio.Future[Answer] | None = None
        self._sending: asyncio.Task[None] | None = None
        self.broken = ""
        """Why the channel is closed."""
        self._loop.add_reader(sock.fileno(), self._readable)

    async def ask(self, header: Header, arrays: Arrays, timeout_s: float, max_body: int = MAX_BODY) -> Answer:
        """Send one request, and return its answer: header and arrays.

        Args:
            header: the request.
            arrays: that go with it.
            timeout_s: a later answer closes the channel.
            max_body: larger arrays close it too.

        Raises:
            ChannelClosed: no answer came, or an invalid one. Cancelling the caller closes it too.
            Refused: the request is too large.
        """
        if self.broken:
            raise ChannelClosed(self.broken)
        buffers = encode(header, arrays)
        self._max_body = max_body
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(timeout_s, self._break, f"it has not answered in {timeout_s:g} s")
        try:
            self._send(buffers)
            return await waiter
        except asyncio.CancelledError:
            self._break("the request was cancelled")
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def close(self) -> None:
        """Close the channel."""
        self._break("it was closed")

    def _send(self, buffers: list[Any]) -> None:
        """Send what the socket takes at once, the rest beside the waiting: a servant may not read."""
        try:
            sent = self._sock.sendmsg(buffers)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._break(f"it has ended: {error.strerror}")
            return
        if sent < sum(len(buffer) for buffer in buffers):
            self._sending = self._loop.create_task(self._send_rest(memoryview(b"".join(buffers))[sent:]))

    async def _send_rest(self, rest: memoryview) -> None:
        try:
            await self._loop.sock_sendall(self._sock, rest)
        except OSError as error:
            self._break(f"it has ended: {error.strerror}")

    def _readable(self) -> None:
        try:
            count = self._sock.recv_into(memoryview(self._buffer)[self._got :])
        except BlockingIOError:
            return
        except OSError as error:
            self._break(f"it has ended: {error.strerror}")
            return
        if not count:
            self._break("it has ended")
            return
        if self._waiter is None or self._waiter.done():
            self._break("it answers without a request")
            return
        self._got += count
        try:
            self._take()
        except Refused as error:
            self._break(error.detail)

    def _take(self) -> None:
        """Pass the answer on once it is whole."""
        if self._got < _PREFIX:
            return
        total = lengths(self._buffer, self._max_body)
        if self._got < total:
            if total > len(self._buffer):
                larger = bytearray(total)
                larger[: self._got] = memoryview(self._buffer)[: self._got]
                self._buffer = larger
            return
        waiter = self._waiter
        if waiter is None:
            return
        header, views = decode(memoryview(self._buffer)[: self._got])
        answer = header, {name: np.array(view) for name, view in views.items()}
        self._got = 0
        if len(self._buffer) > KEPT:
            self._buffer = bytearray(KEPT)
        waiter.set_result(answer)

    def _break(self, why: str) -> None:
        if self.broken:
            return
        self.broken = why
        if self._sending is not None and self._sending is not asyncio.current_task():
            self._sending.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())  # the next socket may have the same number
        self._sock.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ChannelClosed(why))
