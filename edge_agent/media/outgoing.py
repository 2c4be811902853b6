"""Writes packets to the agent in a thread; bounded: the oldest that the agent does not read are dropped."""

import os
import threading
from collections import deque
from typing import Final

from edge_agent.media.packets import PacketKind, header, words_packet

_MAX_BYTES: Final = 4 << 20
_MIN_PACKETS: Final = 4


class Outgoing:
    """The packets that wait for the agent.

    Args:
        fd: the pipe.
        live: True: never wait for the agent, drop the oldest packets instead. False: wait.
        packet_bytes: of the largest packet.
    """

    def __init__(self, fd: int, packet_bytes: int, *, live: bool) -> None:
        self._fd = fd
        self._live = live
        self._limit = max(_MAX_BYTES, _MIN_PACKETS * packet_bytes)
        self._packets: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._open = True

    def run(self) -> None:
        """Body of the thread: write until :meth:`close`, or until the agent reads no more."""
        try:
            with self._writing:  # a second caller waits until the first is through
                while (packet := self._next()) is not None:
                    self._write(packet)
        except OSError:  # the agent has closed the pipe
            os._exit(0)

    def put(self, time_ns: int, payload: bytes) -> None:
        """Add a frame, or a block of samples."""
        self._add(header(PacketKind.MEDIA, len(payload), time_ns, self._dropped) + payload)

    def say(self, kind: PacketKind, words: str) -> None:
        """Add a packet of words."""
        self._add(words_packet(kind, words))

    def _add(self, packet: bytes) -> None:
        with self._changed:
            if not self._live:
                self._changed.wait_for(lambda: self._bytes < self._limit)
            self._packets.append(packet)
            self._bytes += len(packet)
            while self._live and self._bytes > self._limit and len(self._packets) > 1:
                self._bytes -= len(self._packets.popleft())
                self._dropped += 1
            self._changed.notify_all()

    def close(self) -> None:
        """The thread ends once all packets are written."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._packets or not self._open)
            if not self._packets:
                return None
            packet = self._packets.popleft()
            self._bytes -= len(packet)
            self._changed.notify_all()
            return packet

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
