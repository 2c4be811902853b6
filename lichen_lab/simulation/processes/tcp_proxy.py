"""A TCP proxy that counts bytes, with the faults of bad networks: cuts, throttling, delay, flipped bits.

It lives in a thread with an event loop of its own, so that tests, benchmarks and plain scripts can use it
alike; every method may be called from any thread and has taken effect when it returns. ``up`` is from the
client to the broker. A black hole holds data, as TCP holds and repeats unacknowledged data:
after ``heal`` it goes through, unless one side has given up before.
"""

import asyncio
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from lichen_lab.simulation.processes.tcp_proxy_parts import Lane, cancel_and_wait, reset

Direction = Literal["both", "up", "down"]
Way = Literal["up", "down"]
T = TypeVar("T")
HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 16 * 1024
_HELD: Final = 16
"""Reads held for each direction of a connection; more stays with the sender."""


def _ways(direction: Direction) -> tuple[Way, ...]:
    return ("up", "down") if direction == "both" else (direction,)


class Proxy:
    """Listens on ``port`` of 127.0.0.1 and relays to ``upstream_port``; use it as a context manager.

    Args:
        upstream_port: where the broker listens.
        port: own port; 0 takes a free one.
        seed: of the bits that are flipped.
    """

    def __init__(self, upstream_port: int, *, port: int = 0, seed: int = 0) -> None:
        self.upstream_port = upstream_port
        self.port = port
        self._random = random.Random(seed)  # noqa: S311 - which bits flip; no secret
        self._lanes: dict[Way, Lane] = {"up": Lane(), "down": Lane()}
        for lane in self._lanes.values():
            lane.open.set()
        self._delay_s = 0.0
        self._flip_rate = 0.0
        self._refusing = False
        self._cutting: asyncio.Task[None] | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        """Connections taken since the start."""
        self.cuts = 0
        """Connections that were cut."""
        self.flipped = 0
        """Bits that were flipped."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Listen; returns when the port is open."""
        listener = socket.create_server((HOST, self.port), backlog=1024)
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(listener, ready), name="proxy", daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def close(self) -> None:
        """Cut all and free the port. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def bytes_taken(self, way: Way) -> int:
        """Bytes from the sender of a direction, also those that were cut or are held."""
        return sum(self.reads(way))

    def reads(self, way: Way) -> list[int]:
        """Bytes of each read from the sender of a direction, about one packet at low traffic."""
        return [size for size in self._lanes[way].reads if size]

    def bytes_passed(self, way: Way) -> int:
        """Bytes that were passed on."""
        return self._lanes[way].passed

    def cut(self) -> int:
        """RST to both sides of every connection; returns how many there were. New ones are taken."""
        return self._call(self._cut)

    def cut_every(self, seconds: float) -> None:
        """Cut all connections again and again; 0 ends that."""
        self._call(lambda: self._cut_every(seconds))

    def throttle(self, bytes_per_s: float, direction: Direction = "both") -> None:
        """Limit the bytes a second in each direction, all connections together; 0: no limit."""
        self._call(lambda: self._each(direction, lambda lane: setattr(lane, "bytes_per_s", bytes_per_s)))

    def black_hole(self, direction: Direction = "both") -> None:
        """Accept and keep connections, but pass nothing, not even their end."""
        self._call(lambda: self._each(direction, lambda lane: lane.open.clear()))

    def delay(self, seconds: float) -> None:
        """Delay every byte, in each direction."""
        self._call(lambda: setattr(self, "_delay_s", seconds))

    def flip_bits(self, rate: float) -> None:
        """Flip one bit in this share of the bytes, in both directions."""
        self._call(lambda: setattr(self, "_flip_rate", rate))

    def refuse(self) -> None:
        """Refuse new connections with RST; existing ones stay."""
        self._call(lambda: setattr(self, "_refusing", True))

    def heal(self) -> None:
        """End all faults; held data passes."""
        self._call(self._heal)

    def _call(self, work: Callable[[], T]) -> T:
        """Run it in the proxy's loop and wait for it."""

        async def there() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result()

    def _each(self, direction: Direction, work: Callable[[Lane], None]) -> None:
        for way in _ways(direction):
            work(self._lanes[way])

    def _heal(self) -> None:
        self._cut_every(0)
        self._delay_s = self._flip_rate = 0.0
        self._refusing = False
        for lane in self._lanes.values():
            lane.bytes_per_s = 0.0
            lane.open.set()

    def _cut(self) -> int:
        there = len(self._pairs)
        self.cuts += there
        for pair in self._pairs:
            pair.cancel()
        for writer in self._writers:
            reset(writer)
        return there

    def _cut_every(self, seconds: float) -> None:
        if self._cutting is not None:
            self._cutting.cancel()
        self._cutting = self._loop.create_task(self._keep_cutting(seconds)) if seconds > 0 else None

    async def _keep_cutting(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._cut()

    def _main(self, listener: socket.socket, ready: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(listener, ready))

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._taken, sock=listener)
        ready.set()
        await self._over.wait()
        server.close()
        self._heal()
        self._cut()
        if self._pairs:
            await asyncio.wait(self._pairs)
        for _ in range(2):
            await asyncio.sleep(0)  # aborted transports close their sockets in the next turn

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client: relay until one side ends it. Runs as a task of its own."""
        if self._refusing:
            reset(writer)
            return
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio's promise to a connection's callback
        self._pairs.add(task)
        self._writers.add(writer)
        try:
            await self._relay(reader, writer)
        except (asyncio.CancelledError, OSError):
            reset(writer)  # cut, or the upstream does not listen
        finally:
            self._pairs.discard(task)
            self._writers.discard(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(HOST, self.upstream_port)
        self._writers.add(up_writer)
        try:
            pumps = [
                self._loop.create_task(self._pump("up", reader, up_writer)),
                self._loop.create_task(self._pump("down", up_reader, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_and_wait(pumps)
            for one in (up_writer, writer):
                one.close()
                with suppress(OSError):
                    await one.wait_closed()
        finally:
            self._writers.discard(up_writer)
            reset(up_writer)

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction of one connection, until its sender ends it."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD)
        writing = self._loop.create_task(self._write(way, held, writer))
        try:
            while not writing.done():
                await self._lanes[way].open.wait()
                data = await reader.read(_READ_BYTES)
                self._lanes[way].reads.append(len(data))
                await held.put((self._loop.time() + self._delay_s, data))
                if not data:
                    await writing
        except OSError:
            return  # the end of the relay ends the other side
        finally:
            await cancel_and_wait([writing])

    async def _write(
        self, way: Way, held: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        lane = self._lanes[way]
        while True:
            due, data = await held.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if not data:
                await lane.open.wait()
                return
            for piece in lane.slices(self._flipped(data)):
                await lane.open.wait()
                lane.passed += len(piece)  # counted first: the reader may ask at once
                writer.write(piece)
                await writer.drain()
                await lane.pay(len(piece))

    def _flipped(self, data: bytes) -> bytes:
        if not self._flip_rate:
            return data
        changed = bytearray(data)
        for at in range(len(changed)):
            if self._random.random() < self._flip_rate:
                changed[at] ^= 1 << self._random.randrange(8)
                self.flipped += 1
        return bytes(changed)
