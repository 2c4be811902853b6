"""Splits a stream of bytes into lines, each with the time at which its first byte was sent. Pure."""

from collections.abc import Iterator

_NEVER = float("-inf")


class Lines:
    """Splits at line feeds (or carriage returns), in bounded memory.

    The first line after the start is discarded: reading began somewhere within it.

    Args:
        byte_s: seconds that a byte takes on the wire; 0: the time of a line is its arrival.
        limit: bytes of a line; a longer one, as at a wrong baud rate, is discarded and counted.
    """

    def __init__(self, byte_s: float, limit: int) -> None:
        self._byte_s = byte_s
        self._limit = limit
        self._rest = b""
        self._skip = True
        self._last = _NEVER
        self.too_long = 0

    def feed(self, block: bytes, read: float) -> Iterator[tuple[float, bytes]]:
        """Whole lines with their times, in order; ``block`` was read at ``read`` (s)."""
        data = (self._rest + block).replace(b"\r", b"\n")
        *lines, self._rest = data.split(b"\n")
        after = len(data)
        for line in lines:
            size = len(line) + 1
            after -= size
            skip, self._skip = self._skip, False
            if len(line) > self._limit:
                self.too_long += 0 if skip else 1
            elif line and not skip:
                yield self._sent(read - (after + size) * self._byte_s, read), line
        if len(self._rest) > self._limit:
            self.too_long += 0 if self._skip else 1
            self._rest, self._skip = b"", True

    def _sent(self, t: float, read: float) -> float:
        """Never before the previous line, and never after the read; a clock that is set back is followed."""
        if self._last > read:
            self._last = _NEVER
        self._last = max(t, self._last)
        return self._last
