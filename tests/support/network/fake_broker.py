"""A broker that misbehaves on demand: enough of MQTT to answer, refuse, withhold, repeat and cut."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, PINGREQ, DISCONNECT = 1, 3, 4, 8, 12, 14


@dataclass
class FakeBroker:
    """Attributes control its behaviour; lists record what it received."""

    mqtt5: bool = True
    connack: bytes | None = b"\x00\x00\x00"  # flags, reason, length of properties; None: it never answers
    suback: int = 1
    puback: bool = True
    accept: bool = True
    port: int = 0
    connects: int = 0
    connect_packets: list[bytes] = field(default_factory=list)
    filters: list[int] = field(default_factory=list)
    """Of each SUBSCRIBE."""
    published: list[tuple[str, bytes, int]] = field(default_factory=list)  # topic, properties, packet id
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # of PUBLISH: when, bytes of the packet
    pubacks: list[int] = field(default_factory=list)
    unacked: int = 0
    most_unacked: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                head = (await reader.readexactly(1))[0]
                body = await reader.readexactly(await _length(reader))
                await self._handle(head >> 4, head & 15, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.remove(writer)
            writer.close()

    async def _handle(self, kind: int, flags: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if kind == CONNECT:
            self.connects += 1
            self.connect_packets.append(body)
            self.unacked = 0
            if self.connack is not None:
                await _send(writer, 0x20, self.connack)
        elif kind == SUBSCRIBE:
            properties = b"\x00" if self.mqtt5 else b""
            self.filters.append(_filters(body[2 + len(properties) :]))
            await _send(writer, 0x90, body[:2] + properties + bytes([self.suback]))
        elif kind == PUBLISH:
            await self._publish(flags, body, writer)
        elif kind == PUBACK:
            self.pubacks.append(int.from_bytes(body[:2]))
        elif kind == PINGREQ:
            await _send(writer, 0xD0, b"")

    async def _publish(self, flags: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        end = 2 + int.from_bytes(body[:2])
        mid = int.from_bytes(body[end : end + 2])
        properties = body[end + 2 : end + 3 + body[end + 2]] if self.mqtt5 else b""
        self.published.append((body[2:end].decode(), properties, mid))
        length_bytes = 1 + (len(body) >= 1 << 7) + (len(body) >= 1 << 14) + (len(body) >= 1 << 21)
        self.arrivals.append((time.monotonic(), 1 + length_bytes + len(body)))
        if flags & 6:
            self.unacked += 1
            self.most_unacked = max(self.most_unacked, self.unacked)
            if self.puback:
                await self.acknowledge(mid, writer)

    async def acknowledge(self, mid: int, writer: asyncio.StreamWriter | None = None) -> None:
        self.unacked -= 1
        await _send(writer or self.writers[-1], 0x40, mid.to_bytes(2))

    def most_in_a_second(self) -> tuple[int, int]:
        """The most PUBLISH packets, and the most bytes of them, that came in any one second."""
        seconds = [
            [size for when, size in self.arrivals if start <= when < start + 1] for start, _ in self.arrivals
        ]
        return max(map(len, seconds), default=0), max(map(sum, seconds), default=0)

    async def deliver(self, topic: bytes, payload: bytes, mid: int | None) -> None:
        """PUBLISH to the last client; QoS 1 when it has a packet id."""
        properties = b"\x00" if self.mqtt5 else b""
        middle = b"" if mid is None else mid.to_bytes(2)
        body = len(topic).to_bytes(2) + topic + middle + properties + payload
        await _send(self.writers[-1], 0x30 if mid is None else 0x32, body)

    async def disconnect(self, reason: int) -> None:
        """DISCONNECT of MQTT 5, and close."""
        writer = self.writers[-1]
        await _send(writer, 0xE0, bytes([reason, 0]))
        writer.close()

    async def send_raw(self, data: bytes) -> None:
        self.writers[-1].write(data)
        await self.writers[-1].drain()

    def cut(self) -> None:
        """Reset every connection, as a bad network does."""
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def hang_up(self) -> None:
        """Close every connection in order, with no DISCONNECT: a broker that gives the session to another."""
        for writer in self.writers:
            writer.close()


def _filters(body: bytes) -> int:
    """Number of filters in the payload of a SUBSCRIBE."""
    count = at = 0
    while at < len(body):
        at += 3 + int.from_bytes(body[at : at + 2])
        count += 1
    return count


async def _length(reader: asyncio.StreamReader) -> int:
    value, shift = 0, 0
    while True:
        byte = (await reader.readexactly(1))[0]
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value


async def _send(writer: asyncio.StreamWriter, head: int, body: bytes) -> None:
    size, length = len(body), b""
    while True:
        size, low = size >> 7, size & 127
        length += bytes([low | (128 if size else 0)])
        if not size:
            break
    writer.write(bytes([head]) + length + body)
    await writer.drain()


@asynccontextmanager
async def fake_broker(fake: FakeBroker) -> AsyncIterator[FakeBroker]:
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
        fake.cut()
        await server.wait_closed()
        await asyncio.sleep(0.01)
