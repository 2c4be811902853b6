"""Files of a data set as it is published: in a folder, in a ZIP archive, or in a nested one.

An archive is not believed: an entry that claims more than its compressed bytes can become, or more than a
bound, is refused before it is unpacked. Nothing is ever unpacked to a name that stands in the archive.
"""

import errno
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from models.npz import BROKEN
from protocol.errors import Misconfigured, Reason, Refused

MAX_FILE: Final = 64 * 1024**2
"""Largest file, bytes; the largest of UCI-HAR has 16 MB."""
MAX_ARCHIVE: Final = 256 * 1024**2
"""Largest archive, outer or inner, bytes; the published one has 60 MB."""
MAX_ENTRIES: Final = 10_000
MAX_NESTED: Final = 2
_DEFLATE_MOST: Final = 1032
"""Bytes that one byte of deflate can become at most (zlib's technical notes)."""
_ENCRYPTED: Final = 1
_BLOCK: Final = 1 << 20
_ZIP: Final = ".zip"
_KINDS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_NOT_SHOWN: Final = 24


class ArchiveSource(Protocol):
    """Where the files are; names are paths below the data set's own folder, with ``/``."""

    @property
    def where(self) -> str:
        """For messages."""

    def has(self, name: str) -> bool:
        """Whether that file exists."""

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Its bytes, at most ``MAX_FILE``.

        Raises:
            Refused: it is missing, too large or damaged.
        """


@dataclass(frozen=True)
class ArchiveFolder:
    """An unpacked data set."""

    path: Path

    @property
    def where(self) -> str:
        """For messages."""
        return str(self.path)

    def has(self, name: str) -> bool:
        """See :class:`ArchiveSource`."""
        return (self.path / name).is_file()

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """See :class:`ArchiveSource`."""
        if not self.has(name):
            raise Refused(Reason.MALFORMED, f"{self.where}: {name} is not in it")
        _bound(f"{self.where}/{name}", (self.path / name).stat().st_size, MAX_FILE)
        try:
            file = (self.path / name).open("rb")
        except OSError as error:
            raise Misconfigured(f"{self.where}/{name}: cannot be read: {error.strerror}") from None
        with file:
            yield file


class Archive:
    """A ZIP archive; the data set's own folder may lie at any depth in it.

    Args:
        file: open for reading, and left open.
        where: for messages.

    Raises:
        Refused: it is no ZIP archive, or has too many entries.
    """

    def __init__(self, file: IO[bytes], where: str) -> None:
        self.where = where
        start = file.read(_NOT_SHOWN)
        with _damaged(f"{where}: no ZIP archive, or cut off; it begins with {start!r}"):
            self._zip = zipfile.ZipFile(file)
        if len(self._zip.infolist()) > MAX_ENTRIES:
            raise Refused(
                Reason.TOO_LARGE, f"{where}: {len(self._zip.infolist())} entries, at most {MAX_ENTRIES}"
            )

    def has(self, name: str) -> bool:
        """See :class:`ArchiveSource`."""
        return bool(self._entries(name))

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """See :class:`ArchiveSource`."""
        found = self._entries(name)
        if len(found) != 1:
            words = "is not in it" if not found else f"is in it {len(found)} times"
            raise Refused(Reason.MALFORMED, f"{self.where}: {name} {words}")
        with self._unpacked(found[0], MAX_FILE) as file:
            yield file

    def inner(self) -> list[zipfile.ZipInfo]:
        """Archives within this one."""
        return [info for info in self._zip.infolist() if info.filename.lower().endswith(_ZIP)]

    def unpack(self, info: zipfile.ZipInfo, into: IO[bytes]) -> None:
        """Unpack an inner archive, from its beginning to its end.

        Raises:
            Refused: it is damaged or too large.
        """
        with self._unpacked(info, MAX_ARCHIVE) as entry:
            while block := entry.read(_BLOCK):
                into.write(block)
        into.seek(0)

    def _entries(self, name: str) -> list[zipfile.ZipInfo]:
        return [info for info in self._zip.infolist() if f"/{info.filename}".endswith(f"/{name}")]

    @contextmanager
    def _unpacked(self, info: zipfile.ZipInfo, most: int) -> Iterator[IO[bytes]]:
        """An entry; zipfile itself gives no more bytes than it claims, and compares its CRC at the end."""
        where = f"{self.where}: {info.filename[:200]}"
        _bound(where, info.file_size, most)
        if info.flag_bits & _ENCRYPTED or info.compress_type not in _KINDS:
            raise Refused(
                Reason.MALFORMED, f"{where}: encrypted, or packed in a way that ZIP tools rarely use"
            )
        if info.file_size > info.compress_size * _DEFLATE_MOST:
            raise Refused(
                Reason.TOO_LARGE, f"{where}: claims more bytes than its {info.compress_size} can hold"
            )
        with _damaged(f"{where}: damaged"), self._zip.open(info) as entry:
            yield entry


@contextmanager
def opened(path: Path, scratch: Path, own: str, sample: str) -> Iterator[ArchiveSource]:
    """The files of a data set.

    Args:
        path: a folder or an archive.
        scratch: a folder on whose disk an inner archive has room.
        own: name of the data set's own folder.
        sample: a file that the data set has.

    Raises:
        Misconfigured: nothing is there, or it cannot be read.
        Refused: the data set is not in it, or an archive is damaged or too large.
        OSError: ``scratch`` is full or closed to us.
    """
    for folder in (path, path / own):
        if (folder / sample).is_file():
            yield ArchiveFolder(folder)
            return
    file_path = path / f"{own}{_ZIP}" if path.is_dir() else path
    if not file_path.is_file():
        words = f"it has no {sample}, and no {own}{_ZIP}" if path.is_dir() else "there is no such file"
        raise Misconfigured(f"{path}: {words}")
    try:
        file = file_path.open("rb")
    except OSError as error:
        raise Misconfigured(f"{file_path}: cannot be read: {error.strerror}") from None
    with file, within(file, str(file_path), scratch, sample) as source:
        yield source


@contextmanager
def within(
    file: IO[bytes], where: str, scratch: Path, sample: str, depth: int = 0
) -> Iterator[ArchiveSource]:
    """The files of a data set in an open archive or in one within it; see :func:`opened`."""
    archive = Archive(file, where)
    if archive.has(sample):
        yield archive
        return
    inner = archive.inner()
    if len(inner) != 1 or depth >= MAX_NESTED:
        raise Refused(
            Reason.MALFORMED, f"{where}: neither {sample} nor one archive that could hold it is in it"
        )
    with tempfile.TemporaryFile(dir=scratch) as unpacked:  # without a name: removed in any case
        archive.unpack(inner[0], unpacked)
        with within(unpacked, f"{where}: {inner[0].filename[:200]}", scratch, sample, depth + 1) as source:
            yield source


def _bound(where: str, size: int, most: int) -> None:
    if size > most:
        raise Refused(Reason.TOO_LARGE, f"{where}: {size} bytes, at most {most} are read")


@contextmanager
def _damaged(words: str) -> Iterator[None]:
    """What zipfile raises on bytes that are not what they seem, in words."""
    try:
        yield
    except BROKEN as error:
        raise Refused(Reason.MALFORMED, f"{words}: {error}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # of the disk; zipfile seeks wherever the archive says, also below 0
            raise
        raise Refused(Reason.MALFORMED, f"{words}: an entry lies outside of it") from None
