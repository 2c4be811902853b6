"""WAV files: PCM of 8, 16, 24 and 32 bits, and floats, a block at a time.

Python's ``wave`` (3.11) reads neither floats nor the extensible header that most recorders of 24 bits write.

Shapes: n samples, C channels.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Misconfigured

_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
_FORMAT_BYTES: Final = 16
_EXTENSIBLE_BYTES: Final = 26
_UNKNOWN: Final = frozenset({0, 0xFFFFFFFF})
"""Sizes that a program writes which does not know the length yet: the data goes to the end of the file."""
_MOST_RATE: Final = 768_000
_MOST_CHANNELS: Final = 64
_PCM_BITS: Final = frozenset({8, 16, 24, 32})
_FLOAT_BITS: Final = frozenset({32, 64})
BLOCK: Final = 1 << 16
"""Samples read at a time."""


@dataclass(frozen=True)
class WavFile:
    """The header of a file; ``samples`` is the number of samples of each channel."""

    path: Path
    rate_hz: int
    channels: int
    bits: int
    is_float: bool
    begin: int
    samples: int

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.samples / self.rate_hz

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The samples (n, C), from -1 to 1, at most :data:`BLOCK` at a time.

        Raises:
            OSError: it cannot be read.
        """
        size = self.channels * self.bits // 8
        left = self.samples
        with self.path.open("rb") as file:
            file.seek(self.begin)
            while left and (data := file.read(min(left, BLOCK) * size)):
                whole = data[: len(data) // size * size]
                yield self._values(whole).reshape(-1, self.channels)
                left -= len(whole) // size

    def _values(self, data: bytes) -> NDArray[np.float32]:
        if self.is_float:
            return np.frombuffer(data, f"<f{self.bits // 8}").astype(np.float32)
        match self.bits:
            case 8:  # the only one without a sign
                return (np.frombuffer(data, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
            case 16:
                return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
            case 24:
                wide = np.zeros((len(data) // 3, 4), np.uint8)
                wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
                return (wide.view("<i4")[:, 0] / 2**31).astype(np.float32)
            case _:
                return (np.frombuffer(data, "<i4") / 2**31).astype(np.float32)


def opened(path: Path) -> WavFile:
    """Read the header.

    Raises:
        Misconfigured: it is no WAV file, of a form that is not read, empty, or cut off; names the file.
    """
    try:
        with path.open("rb") as file:
            return _header(path, file, path.stat().st_size)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from None


def _header(path: Path, file: IO[bytes], size: int) -> WavFile:
    start = file.read(12)
    if len(start) < 12 or start[:4] != b"RIFF" or start[8:] != b"WAVE":  # noqa: PLR2004 - RIFF, size, WAVE
        raise Misconfigured(f"{path}: no WAV file: it does not begin with RIFF and WAVE")
    form: tuple[int, int, int, int] | None = None
    while True:
        head = file.read(8)
        if len(head) < 8:  # noqa: PLR2004 - name and size
            raise Misconfigured(f"{path}: it ends before its samples (no chunk 'data')")
        name, length = head[:4], int.from_bytes(head[4:], "little")
        if name == b"fmt ":
            form = _form(path, file.read(min(length, 64)))
            file.seek(max(0, length - 64) + length % 2, 1)
        elif name == b"data":
            break
        else:
            file.seek(length + length % 2, 1)
    if form is None:
        raise Misconfigured(f"{path}: its samples come before their form (no chunk 'fmt ')")
    channels, rate, bits, code = form
    begin = file.tell()
    there = size - begin
    if length in _UNKNOWN:
        length = there
    if length > there:
        raise Misconfigured(f"{path}: cut off: its header says {length} bytes of samples, {there} are there")
    samples = length // (channels * bits // 8)
    if not samples:
        raise Misconfigured(f"{path}: it has no sample")
    return WavFile(path, rate, channels, bits, code == _FLOAT, begin, samples)


def _form(path: Path, data: bytes) -> tuple[int, int, int, int]:
    """Channels, rate, bits, code."""
    if len(data) < _FORMAT_BYTES:
        raise Misconfigured(f"{path}: its chunk 'fmt ' is cut off")
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", data[:_FORMAT_BYTES])
    if code == _EXTENSIBLE and len(data) >= _EXTENSIBLE_BYTES:
        code = int.from_bytes(data[24:26], "little")
    known = {_PCM: _PCM_BITS, _FLOAT: _FLOAT_BITS}.get(code, frozenset())
    if bits not in known:
        raise Misconfigured(
            f"{path}: format {code} with {bits} bits is not read (PCM of 8, 16, 24, 32 bits and "
            "floats are): convert it"
        )
    if not (1 <= channels <= _MOST_CHANNELS and 1 <= rate <= _MOST_RATE):
        raise Misconfigured(f"{path}: its header says {channels} channels at {rate} Hz")
    return channels, rate, bits, code
