"""Pieces of the fault proxy: its lanes, and how connections and tasks end."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

_SLICES_A_SECOND: Final = 20
"""A throttled direction is written in slices of this many a second, so that it flows and does not jump."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, zero seconds: closing sends RST and drops what is buffered."""


@dataclass
class Lane:
    """One direction, of all connections together.

    Attributes:
        reads: bytes of each read from the sender, about one MQTT packet at low traffic.
        passed: bytes that were passed on.
        bytes_per_s: limit; 0: none.
        free_at: when the limit lets the next byte through.
        open: cleared by a black hole.
    """

    reads: list[int] = field(default_factory=list)
    passed: int = 0
    bytes_per_s: float = 0.0
    free_at: float = 0.0
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def slices(self, data: bytes) -> Iterable[bytes]:
        """Pieces to be written one after the other."""
        size = max(1, int(self.bytes_per_s / _SLICES_A_SECOND)) if self.bytes_per_s else len(data)
        return (data[at : at + size] for at in range(0, len(data), size))

    async def pay(self, size: int) -> None:
        """Wait until so many bytes are through."""
        if self.bytes_per_s:
            now = asyncio.get_running_loop().time()
            self.free_at = max(self.free_at, now) + size / self.bytes_per_s
            await asyncio.sleep(self.free_at - now)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):  # it is closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def cancel_and_wait(tasks: Iterable[Awaitable[None]]) -> None:
    """Cancel, and wait for the end of it."""
    for task in tasks:
        task.cancel()  # type: ignore[attr-defined]
    await asyncio.gather(*tasks, return_exceptions=True)
