"""HTTPS to the enrolment service: small requests and answers, with limits.

The server may be slow, send too much, lie or be another one: the whole exchange has one deadline (a timeout
for each read would let a trickle of bytes continue for ever), the body has a limit, and no redirect is
followed.
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
    """An answer. ``date``: the service's clock in Unix seconds, if it sent one."""

    status: int
    body: bytes
    date: float | None


class CuttableConnection(http.client.HTTPSConnection):
    """A connection whose socket is known before the handshake, so that it can be closed at the deadline."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._trust = context
        self._over = False
        self._secure: ssl.SSLSocket | None = None
        """Also while a response is read: ``sock`` is None by then, if the server closes after it."""

    def connect(self) -> None:
        """Connect, and agree on the encryption."""
        plain = socket.create_connection((self.host, self.port), self.timeout)
        try:
            secure = self._trust.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
        except BaseException:
            plain.close()
            raise
        self.sock = self._secure = secure
        if self._over:  # the deadline passed before there was a socket
            raise TimeoutError
        secure.do_handshake()

    def cut(self) -> None:
        """Close the connection; from any thread."""
        self._over = True
        if self._secure is not None:
            with contextlib.suppress(OSError):  # already closed
                # not SSLSocket.shutdown: that would make the reader go on without encryption
                socket.socket.shutdown(self._secure, socket.SHUT_RDWR)


class HttpsClient:
    """Client of one service.

    Args:
        url: ``https://host:port``.
        context: the trusted authority.
        timeout_s: for a whole exchange, from the connect to the last byte.

    Raises:
        Misconfigured: the address is invalid.
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
                f"{url!r} is not the address of a service; ask for a new invite: lichen device invite"
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

        If the service's certificate is refused only for its dates, and they show that this device's clock is
        behind, the exchange is repeated without checking dates (see :mod:`runtime.mqtt.tls`).

        Raises:
            Transient: not reachable, too slow, connection lost, or its certificate has expired by this
                device's clock.
            Refused: its answer is invalid or too large, or it is not trusted.
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
        connection = CuttableConnection(self._host, self._port, self._context, self._timeout_s)
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
                    raise Transient(f"{self.url} did not answer in {self._timeout_s:g} s") from None
                raise self._failed(error) from None

    @contextlib.contextmanager
    def _deadline(self, connection: CuttableConnection) -> Iterator[threading.Event]:
        """Close the connection at the deadline; the event tells whether it did."""
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
        if announced is None and not response.chunked:  # the headers themselves may be incomplete
            raise Transient(f"{self.url} closed the connection, or does not give the length of its answer")
        if announced is not None and announced > MAX_BODY_BYTES:
            raise self._too_large(f"announces {announced} bytes")
        body = response.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise self._too_large("sends without end")
        if announced is not None and len(body) < announced:
            raise Transient(f"{self.url} closed the connection after {len(body)} of {announced} bytes")
        return HttpResponse(response.status, body, _date(response.headers.get("Date")))

    def _too_large(self, what: str) -> Refused:
        return Refused(Reason.TOO_LARGE, f"{self.url} {what}; at most {MAX_BODY_BYTES} are taken")

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
        return Transient(
            f"{self.url} cannot be reached, or the connection was lost: {error or type(error).__name__}"
        )

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
            f"{words}: another server answers for the coordinator, or it was set up again; nothing was sent",
        )


def _date(text: str | None) -> float | None:
    """The ``Date`` header (RFC 9110, 6.6.1) in Unix seconds."""
    if text is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
