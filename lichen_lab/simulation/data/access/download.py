"""Downloads one file over HTTP, with bounds on bytes, silence, slowness and attempts.

A transfer that was cut goes on where it ended, if the server can say that the file is still the same one
(ETag or Last-Modified with a range request, RFC 9110); else it begins again.
"""

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from typing import IO, Any, Final, NoReturn

from protocol.errors import Misconfigured, Reason, Refused, Transient

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far, and the bytes in all (None: unknown)."""
_BLOCK: Final = 1 << 16
_WAIT_AND_RETRY: Final = frozenset({408, 425, 429})
_CLIENT_ERRORS: Final = range(400, 500)
_PARTIAL: Final = 206
_RANGE: Final = 416
_MAX_DIGITS: Final = 18


@dataclass(frozen=True)
class DownloadLimits:
    """Bounds of a transfer.

    Attributes:
        max_bytes: of the file.
        silence_s: without a byte (also before the first).
        slow_s: a stretch of time in which ``slow_bytes`` must come at least.
        slow_bytes: see above.
        attempts: in all, the first included.
        pause_s: before the second attempt; each further pause is twice as long.
    """

    max_bytes: int
    silence_s: float = 30.0
    slow_s: float = 60.0
    slow_bytes: int = 60 * 4096
    attempts: int = 6
    pause_s: float = 1.0


class _Cut(Exception):  # noqa: N818 - what happened to the transfer
    """Another attempt may do better."""


def download(
    url: str, into: IO[bytes], limits: DownloadLimits, progress: Progress = lambda _got, _all: None
) -> int:
    """Write the file at ``url`` into an empty file.

    Args:
        url: http or https.
        into: open for writing, seekable; left at its end.
        limits: of the transfer.
        progress: told after each block.

    Returns:
        Its bytes.

    Raises:
        Refused: TOO_LARGE.
        Misconfigured: the server says that it is not there or not for us, or shows a wrong certificate.
        Transient: the network or the server fails, at every attempt.
        OSError: writing failed.
    """
    if not url.startswith(("http://", "https://")):
        raise Misconfigured(f"{url}: only http and https addresses are fetched")
    transfer, why = _Transfer(url, into, limits, progress), ""
    for attempt in range(limits.attempts):
        if attempt:
            time.sleep(limits.pause_s * 2 ** (attempt - 1))
        try:
            transfer.attempt()
        except _Cut as cut:
            why = str(cut)
        else:
            return transfer.got
    raise Transient(f"{url}: {why}; {limits.attempts} attempts, try again later")


@dataclass
class _Transfer:
    """The bytes so far, and the request for the rest."""

    url: str
    into: IO[bytes]
    limits: DownloadLimits
    progress: Progress
    got: int = 0
    total: int | None = None
    validator: str | None = None
    """Validator by which the server recognises the file of which a part is here."""

    def attempt(self) -> None:
        """Get the rest, or as much of it as arrives.

        Raises:
            _Cut: another attempt may do better.
        """
        with self._answer() as response:
            self._begin(response)
            self.into.seek(self.got)
            self.into.truncate()
            self._take(response)

    def _answer(self) -> Any:
        headers = {"User-Agent": "lichen", "Accept-Encoding": "identity"}
        if self.got and self.validator:
            headers |= {"Range": f"bytes={self.got}-", "If-Range": self.validator}
        request = urllib.request.Request(self.url, headers=headers)  # noqa: S310 - http(s), see download()
        try:
            return urllib.request.urlopen(request, timeout=self.limits.silence_s)  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            with error:
                code, words = error.code, f"the server answers {error.code} {error.reason}"
            if code == _RANGE:  # the part here does not belong to the present file
                self.got = 0
            elif code in _CLIENT_ERRORS and code not in _WAIT_AND_RETRY:
                raise Misconfigured(f"{self.url}: {words}") from None
            raise _Cut(words) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise Misconfigured(f"{self.url}: {error.reason}") from None
            raise _Cut(f"no connection: {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(f"no answer: {error or type(error).__name__}") from None

    def _begin(self, response: Any) -> None:
        """Note what the server says; from the beginning, unless it gives the rest that was asked for."""
        headers: Message = response.headers
        if response.status != _PARTIAL:
            self.got = 0
        elif _first_byte(headers) != self.got:
            self.got, self.validator = 0, None
            raise _Cut("the server gives another part than was asked for")
        length = _number(headers.get("Content-Length", ""))
        self.total = None if length is None else self.got + length
        if (self.total or 0) > self.limits.max_bytes:
            self._too_large(f"{self.total}")
        etag = headers.get("ETag", "")
        strong = etag if etag.startswith('"') else None  # a weak one may stand for other bytes
        self.validator = strong or headers.get("Last-Modified")

    def _take(self, response: Any) -> None:
        """Write the body; bytes before a cut count too."""
        since, before = time.monotonic(), self.got
        while block := _read(response):
            self.into.write(block)
            self.got += len(block)
            self.progress(self.got, self.total)
            if self.got > self.limits.max_bytes:
                self._too_large(f"over {self.limits.max_bytes}")
            if time.monotonic() - since > self.limits.slow_s:
                if self.got - before < self.limits.slow_bytes:
                    raise _Cut(f"too slow: {self.got - before} bytes in {self.limits.slow_s:g} s")
                since, before = time.monotonic(), self.got
        if self.total is not None and self.got < self.total:
            raise _Cut(f"the connection ended after {self.got} of {self.total} bytes")

    def _too_large(self, size: str) -> NoReturn:
        raise Refused(
            Reason.TOO_LARGE, f"{self.url}: {size} bytes, at most {self.limits.max_bytes} are fetched"
        )


def _first_byte(headers: Message) -> int | None:
    return _number(headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0])


def _number(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) <= _MAX_DIGITS else None


def _read(response: Any) -> bytes:
    try:
        data: bytes = response.read1(_BLOCK)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Cut(f"the connection was cut: {error or type(error).__name__}") from None
    return data
