"""The idx format of MNIST: two zero bytes, a type, the number of axes, big-endian lengths, then the values.

Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits. Only unsigned bytes are read. The
lengths are checked against bounds before anything of their size is allocated, also where the file is packed
with gzip, a byte of which may become a thousand.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Misconfigured

MAX_BYTES: Final = 256 * 1024**2
_UBYTE: Final = 8
_MAX_AXES: Final = 4


class _Bytes(Protocol):
    """A file, or what gzip makes of one."""

    def read(self, size: int, /) -> bytes: ...


def read(path: Path) -> NDArray[np.uint8]:
    """The array of an idx file; ``.gz`` is unpacked.

    Raises:
        Misconfigured: it cannot be read, is not idx, is not of bytes, is cut off or is too large.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _array(file)
    except (OSError, EOFError, ValueError, zlib.error, struct.error) as error:
        raise Misconfigured(f"{path}: cannot be read as idx: {error}") from None


def _array(file: _Bytes) -> NDArray[np.uint8]:
    zeros, kind, axes = struct.unpack(">HBB", file.read(4))
    if zeros or kind != _UBYTE or not 1 <= axes <= _MAX_AXES:
        raise ValueError("it does not begin like an idx file of unsigned bytes")
    shape = struct.unpack(f">{axes}I", file.read(4 * axes))
    size = math.prod(shape)
    if size > MAX_BYTES:
        raise ValueError(f"its header claims {size} bytes, at most {MAX_BYTES} are read")
    data = file.read(size + 1)
    if len(data) != size:
        raise ValueError(
            f"its header says {size} values, the file has {'more' if len(data) > size else 'fewer'}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
