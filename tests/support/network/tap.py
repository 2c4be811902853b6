"""A TCP relay that records every byte, for tests that search for bytes that must not be sent."""

import asyncio
import socket
import threading
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_READ_BYTES = 1 << 16


class Tap:
    """Listens on ``port`` of 127.0.0.1 and relays to ``upstream_port``; a context manager with a thread."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = upstream_port
        self._streams: list[bytearray] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tap", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def streams(self) -> list[bytes]:
        """The bytes so far, a text for each direction of each connection."""
        return [bytes(stream) for stream in self._streams]

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._relay, sock=self._listener)
        await self._over.wait()
        server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(HOST, self._upstream)
        pair = [asyncio.create_task(self._pass(*ends)) for ends in ((reader, to_writer), (to_reader, writer))]
        try:
            await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pair:
                task.cancel()
            writer.close()
            to_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        self._streams.append(kept)
        try:
            while data := await reader.read(_READ_BYTES):
                kept += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return
