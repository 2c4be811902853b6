"""HTTPS to the enrolment service: one small question, one small answer, everything bounded.

The other side may be slow, huge, lying or somebody else: the whole exchange has one deadline (a timeout for
each read would let a trickle of bytes go on for ever), the body a bound, and no redirect is followed.
"""

import contextlib
import email.utils
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from protocol.enrolment import MAX_BODY_BYTES
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.mqtt.tls import NOT_YET_VALID, date_words, leave_out_dates

TIMEOUT_S: Final = 30.0
_WRONG_HOST: Final = (62, 63, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_MISMATCH, _IP_ADDRESS_MISMATCH."""


@dataclass(frozen=True)
class HttpResponse:
    """What came back. ``date``: the service's clock in unix seconds, where it said so."""

    status: int
    body: bytes
    date: float | None


class _Connection(http.client.HTTPSConnection):
    """With the socket known from before the handshake, so that it can be cut at the deadline."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._trust = context
        self._over = False

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        try:
            secure = self._trust.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
        except BaseException:
            plain.close()
            raise
        self.sock = secure
        if self._over:  # before there was anything to cut
            raise TimeoutError
        secure.do_handshake()

    def cut(self) -> None:
        """End what is under way; from any thread."""
        self._over = True
        sock = self.sock
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):  # it ended by itself
                # not SSLSocket.shutdown: that would make the reader go on without encryption
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class HttpsClient:
    """One service.

    Args:
        url: ``https://host:port``.
        context: whom to trust.
        timeout_s: for a whole exchange, from dialling to the last byte.

    Raises:
        Misconfigured: the address is none.
    """

    def __init__(self, url: str, context: ssl.SSLContext, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 443
        except ValueError:
            host, port = None, 0
        if host is None:
            raise Misconfigured(
                f"{url!r} is no address of a service; ask for a new invite: lichen device invite"
            )
        self._host, self._port = host, port
        self._context = context
        self._timeout_s = timeout_s

    def get(self, path: str) -> HttpResponse:
        """See :meth:`ask`."""
        return self.ask("GET", path)

    def post(self, path: str, body: str) -> HttpResponse:
        """See :meth:`ask`."""
        return self.ask("POST", path, body.encode())

    def ask(self, method: str, path: str, body: bytes | None = None) -> HttpResponse:
        """One exchange on a connection of its own.

        Where only the dates of the service's certificate are against it, and they say that our clock is
        behind, it is asked again without dates (see :mod:`runtime.mqtt.tls`).

        Raises:
            Transient: not there, too slow, broke off, or its certificate has run out by our clock.
            Refused: it answers nonsense, too much, or is not whom we trust.
            Misconfigured: its certificate is for another host name.
        """
        try:
            return self._ask(method, path, body)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code != NOT_YET_VALID:
                raise self._distrust(error) from None
        leave_out_dates(self._context)
        try:
            return self._ask(method, path, body)
        except ssl.SSLCertVerificationError as error:
            raise self._distrust(error) from None

    def _ask(self, method: str, path: str, body: bytes | None) -> HttpResponse:
        connection = _Connection(self._host, self._port, self._context, self._timeout_s)
        headers = {"Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        with self._deadline(connection) as late, contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers)
                with connection.getresponse() as response:
                    return self._read(response)
            except ssl.SSLCertVerificationError:
                raise
            except (OSError, http.client.HTTPException, ValueError, Transient) as error:
                if late.is_set() or isinstance(error, TimeoutError):
                    raise self._too_slow() from None
                raise self._failed(error) from None

    @contextlib.contextmanager
    def _deadline(self, connection: _Connection) -> Iterator[threading.Event]:
        """Cut the connection when its time is over; the event says that this was it."""
        late = threading.Event()

        def cut() -> None:
            late.set()
            connection.cut()

        timer = threading.Timer(self._timeout_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()
            timer.join()

    def _read(self, response: http.client.HTTPResponse) -> HttpResponse:
        announced = response.length
        if announced is None and not response.chunked:  # the headers themselves may have been cut off
            raise Transient(f"{self.url} broke off, or does not say how long its answer is")
        if announced is not None and announced > MAX_BODY_BYTES:
            raise self._too_large(f"announces {announced} bytes")
        body = response.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise self._too_large("sends more and more")
        if announced is not None and len(body) < announced:
            raise Transient(f"{self.url} broke off after {len(body)} of {announced} bytes")
        return HttpResponse(response.status, body, _date(response.headers.get("Date")))

    def _too_large(self, what: str) -> Refused:
        return Refused(Reason.TOO_LARGE, f"{self.url} {what}; at most {MAX_BODY_BYTES} are taken")

    def _too_slow(self) -> Transient:
        return Transient(f"{self.url} did not answer in {self._timeout_s:g} s")

    def _failed(self, error: Exception) -> Exception:
        if isinstance(error, Transient):
            return error
        if isinstance(error, socket.gaierror):
            return Transient(f"{self.url}: the host name is not known: {error.strerror}")
        if isinstance(error, ConnectionRefusedError):
            return Transient(f"{self.url} is not there: connection refused; does the coordinator run?")
        if isinstance(error, ssl.SSLError):
            return Transient(f"{self.url}: TLS failed: {error.reason or error}")
        if isinstance(error, http.client.HTTPException | ValueError) and not isinstance(
            error, http.client.RemoteDisconnected | http.client.IncompleteRead
        ):
            return Refused(
                Reason.MALFORMED,
                f"{self.url} does not answer in HTTP: {type(error).__name__}; is the port right?",
            )
        return Transient(f"{self.url} cannot be reached, or broke off: {error or type(error).__name__}")

    def _distrust(self, error: ssl.SSLCertVerificationError) -> Exception:
        words = f"{self.url} shows a certificate that is not trusted: {error.verify_message}"
        if dates := date_words(error):
            return Transient(words + dates)
        if error.verify_code in _WRONG_HOST:
            return Misconfigured(
                f"{words}; the coordinator must know itself by this name: lichen coordinator init --host "
                f"{self._host}"
            )
        return Refused(
            Reason.WRONG_DIGEST,
            f"{words}: somebody stands between us and the coordinator, or it was set up anew; nothing was "
            "sent",
        )


def _date(text: str | None) -> float | None:
    """The ``Date`` header (RFC 9110, 6.6.1) in unix seconds."""
    if text is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
