"""Output files of commands: a failed write has a message and an exit code of its own."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from protocol.errors import LichenError
from runtime import exit_codes

_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_PLACE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)


class NotWritten(LichenError):  # noqa: N818 - reads as what happened, as protocol.errors do
    """An output file was not written. ``exit_code``: 73 wrong place, 74 the disk fails, 77 not permitted."""

    def __init__(self, words: str, exit_code: int) -> None:
        super().__init__(words)
        self.exit_code = exit_code


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Wrap the writing of an output file or folder that the command line names.

    Raises:
        NotWritten: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _CLOSED:
            words, code = f"{path}: {why}; choose another place, or another user", exit_codes.NOPERM
        elif error.errno in _PLACE:
            words, code = f"{path}: cannot be made: {why}; choose another place", exit_codes.CANTCREAT
        else:
            words, code = f"{path}: not written: {why}", exit_codes.IOERR
        raise NotWritten(words, code) from None
