"""Reads npz files that may be damaged or malicious: checks sizes before anything is allocated.

``numpy.load`` trusts the shape in an array's header, and a ZIP entry may expand a thousandfold. Here an entry
must have exactly the size of its header, and all entries together at most ``max_bytes``. Pickled objects are
never read.
"""

import math
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_BYTES: Final = 2 * 1024**3
MAX_ARRAYS: Final = 65_536
_MAX_HEADER: Final = 10_000
_MAX_AXES: Final = 32
_HEADER: Final = re.compile(
    rb"\{'descr': '([<>|=][biufOSU][0-9]{0,9})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,19}, ?)*(?:[0-9]{1,19})?)\), \}[ \n]*\Z"
)
_BLOCK: Final = 1 << 20
_SUFFIX: Final = ".npy"
_ENCRYPTED: Final = 1
_DEFLATE_MOST: Final = 1032
"""Maximum expansion of deflate (zlib's technical notes)."""
_STORED_OR_DEFLATED: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
BROKEN: Final = (
    *(ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""Exceptions of zipfile and numpy for invalid bytes."""


class BadNpz(ValueError):  # noqa: N818 - says what was found, like Refused
    """The file is no readable npz; the message names the entry and the error."""


def read(
    path: Path, max_bytes: int = MAX_BYTES, only: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """All arrays of an npz, by name.

    Args:
        path: the file.
        max_bytes: of all arrays together, whatever the file's own size.
        only: reads the existing arrays of these names alone; None: all.

    Raises:
        BadNpz: it is damaged, lies about a size, is too large, or holds Python objects.
        OSError: it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # to open a pipe would wait for a writer
        raise BadNpz("it is no regular file")
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            infos = _entries(archive, max_bytes, status.st_size)
            selected = [name for name in infos if only is None or name in only]
            return {name: _array(archive, infos[name], name) for name in selected}
    except BadNpz:
        raise
    except BROKEN as error:
        raise BadNpz(f"{type(error).__name__}: {error}"[:300]) from None


def names(path: Path) -> tuple[str, ...]:
    """The names of an npz's arrays, which are not read.

    Raises:
        BadNpz: it is no archive.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return tuple(name.removesuffix(_SUFFIX) for name in archive.namelist())
    except BROKEN as error:
        raise BadNpz(f"{type(error).__name__}: {error}"[:300]) from None


def _entries(archive: zipfile.ZipFile, max_bytes: int, on_disk: int) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    total = sum(info.file_size for info in infos)
    if len(infos) > MAX_ARRAYS or total > max_bytes:
        raise BadNpz(f"{len(infos)} arrays of {total} bytes; at most {MAX_ARRAYS} of {max_bytes} are read")
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(_SUFFIX)
        if info.flag_bits & _ENCRYPTED or info.compress_type not in _STORED_OR_DEFLATED:
            raise BadNpz(f"key {name[:100]!r} is encrypted, or packed in a way that numpy does not use")
        limit = info.compress_size * (_DEFLATE_MOST if info.compress_type else 1)
        if info.file_size > limit or info.compress_size > on_disk:
            raise BadNpz(f"key {name[:100]!r} claims {info.file_size} bytes, more than the file can hold")
        if name in entries:
            raise BadNpz(f"key {name[:100]!r} occurs twice")
        entries[name] = info
    return {name: entries[name] for name in sorted(entries)}


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    """Read one array; allocates only after the sizes of header and entry agree."""
    with archive.open(info) as entry:
        dtype, shape, fortran = _header(entry, name[:100])
        size = math.prod(shape) * dtype.itemsize
        left = info.file_size - entry.tell()
        if size != left:
            raise BadNpz(f"key {name[:100]!r} claims {size} bytes of numbers; it has {left}")
        data = _exactly(entry, size)
    if len(data) != size:
        raise BadNpz(f"key {name[:100]!r} is cut off")
    flat: NDArray[Any] = np.frombuffer(data, dtype, math.prod(shape)) if size else np.zeros(shape, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(entry: IO[bytes], name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Type, shape and order of an array (NEP 1), in the form that numpy writes.

    numpy's reader would accept any Python literal.
    """
    magic = entry.read(8)
    lengths = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}
    if magic not in lengths:
        raise BadNpz(f"key {name!r} does not begin like a numpy array")
    length = int.from_bytes(entry.read(lengths[magic]), "little")
    header = _HEADER.match(entry.read(min(length, _MAX_HEADER)))
    if length > _MAX_HEADER or header is None:
        raise BadNpz(f"key {name!r} has a header that numpy would not write for an array of numbers")
    kind, fortran, axes = (part.decode("ascii") for part in header.groups())
    if "O" in kind:
        raise BadNpz(f"{name} holds Python objects, not numbers")
    if not np.dtype(kind).itemsize:  # numpy would read elements without a size as one byte
        raise BadNpz(f"key {name!r} holds {kind}, elements without a size")
    shape = tuple(int(axis) for axis in axes.replace(" ", "").split(",") if axis)
    if len(shape) > _MAX_AXES:
        raise BadNpz(f"key {name!r} has {len(shape)} axes")
    return np.dtype(kind), shape, fortran == "True"


def _exactly(entry: IO[bytes], size: int) -> bytearray:
    """A writable copy that grows as it is read; reading to the end makes zipfile check the CRC."""
    data = bytearray()
    while block := entry.read(min(_BLOCK, size + 1 - len(data))):
        data += block
    return data
