"""TLS to the broker: files are read at every connect, and the machine's clock may not be right yet.

A small board without a battery boots in 1970, or at the time when it was switched off. Until its clock is
set, every certificate seems to come from the future. So while the clock is before a time that has certainly
passed (``runtime.mqtt.certificate_dates``), dates are not checked; chain and host name still are, and a
warning is logged. A machine whose clock is behind could not see that a certificate has expired anyway, so
nothing is lost. Once the clock is right, dates are checked.
"""

import datetime as dt
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from protocol.errors import Misconfigured
from runtime.mqtt.certificate_dates import known_since
from runtime.settings.load import MqttSettings, TlsSettings

_log = structlog.get_logger(__name__)
NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h; Python's ssl has no name for it."""
NOT_YET_VALID: Final = 9
"""X509_V_ERR_CERT_NOT_YET_VALID."""
HAS_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""
_TRIES: Final = 3
_ALERTS: Final = {
    "CERTIFICATE_EXPIRED": "it has expired",
    "CERTIFICATE_REVOKED": "it was revoked",
    "UNKNOWN_CA": "it comes from another authority",
    "CERTIFICATE_REQUIRED": "none was shown",
    "CERTIFICATE_UNKNOWN": "it was not accepted",
    "BAD_CERTIFICATE": "it was not accepted",
    "ACCESS_DENIED": "it has no access",
}
"""TLS alerts (RFC 8446, 6.2) that are about our certificate."""


class TlsContexts:
    """Trusted authorities and own certificate of a link, read for each connection, so that renewals count.

    Args:
        settings: of the link.
        wall: Unix seconds.
    """

    def __init__(self, settings: MqttSettings, wall: Callable[[], float] = time.time) -> None:
        self._tls = settings.tls
        self._where = settings.where
        self._wall = wall
        self._last: ssl.SSLContext | None = None
        self._made_from: object = None
        self._early = False
        self._reported = ""
        self._alert = self._alert_before = ""
        self._shaken = False

    @property
    def alert(self) -> str:
        """Why the broker refuses our certificate, in words.

        The alert itself is often lost, because the broker closes the connection right after it. So the last
        one holds as long as connections end after the handshake without a byte from the broker.
        """
        return self._alert or (self._alert_before if self._shaken else "")

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; None without ``[mqtt.tls]``.

        Raises:
            Misconfigured: a file is missing or wrong; the message names the key. Only at the first call:
                later the last good files stay in use, and a warning is logged.
        """
        if self._tls is None:
            return None
        self._alert_before, self._alert, self._shaken = self.alert, "", False
        early, self._early = self._early, False
        try:
            self._last = self._current(self._tls, early=early)
        except Misconfigured as error:
            if self._last is None:
                raise
            self._report(str(error), "tls_files_unreadable", f"{error}; the files read before stay in use")
        return self._last

    def _current(self, tls: TlsSettings, *, early: bool) -> ssl.SSLContext:
        """The last context if no file has changed, else a new one."""
        made_from = _stamps(tls)
        context = self._last
        if context is None or made_from != self._made_from:
            context = _make(tls, _socket_class(self))
            self._made_from = made_from
            self._since = known_since(tls.cert_file, _private(tls, context))
        behind = early or self._wall() < self._since
        if behind:
            context.verify_flags |= NO_CHECK_TIME
            self._report(
                "behind",
                "clock_behind",
                f"this machine's clock ({utc(self._wall())}) is behind: a certificate was issued later; "
                "dates of certificates are not checked until the clock is right",
            )
        else:
            context.verify_flags &= ~NO_CHECK_TIME
            self._reported = ""
        return context

    def on_shaken(self) -> None:
        """The handshake is done; in TLS 1.3 the broker has not judged our certificate yet."""
        self._shaken = True

    def on_data(self) -> None:
        """The broker sent data."""
        self._alert_before = ""

    def on_early(self) -> None:
        """The broker's certificate starts later than our clock: the next attempt does not check dates.

        Only if ``ca_file`` is set: an authority of our own does not sign for the future.
        """
        self._early = self._tls is not None and self._tls.ca_file is not None

    def on_alert(self, reason: str) -> None:
        """TLS failed for this reason (OpenSSL's text)."""
        for name, words in _ALERTS.items():
            if reason.endswith("ALERT_" + name):
                self._alert = (
                    f"the broker at {self._where} refuses our certificate: {words} (mqtt.tls.cert_file)"
                )

    def _report(self, state: str, event: str, why: str) -> None:
        if state != self._reported:
            self._reported = state
            _log.warning(event, why=why)


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """The context of ``[mqtt.tls]`` as it is now, or None.

    Raises:
        Misconfigured: a file is missing or wrong; the message names the key.
    """
    return TlsContexts(settings).context()


def leave_out_dates(context: ssl.SSLContext) -> None:
    """Check chain and host name, but not dates: for a machine whose clock is known to be behind."""
    context.verify_flags |= NO_CHECK_TIME


def utc(seconds: float) -> str:
    """Unix seconds as text for people."""
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s"


def date_words(error: ssl.SSLCertVerificationError) -> str:
    """A hint about the clock if the check of a date failed; empty for any other failure."""
    if error.verify_code in (NOT_YET_VALID, HAS_EXPIRED):
        return f"; this machine's clock says {utc(time.time())}: is it right?"
    return ""


def _make(tls: TlsSettings, socket_class: type[ssl.SSLSocket]) -> ssl.SSLContext:
    key, file = "ca_file", tls.ca_file
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.sslsocket_class = socket_class
        if tls.cert_file is not None:
            key, file = "cert_file and key_file", tls.cert_file
            _load_pair(context, tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"mqtt.tls.{key}: {file}: {error}") from None
    return context


def _load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    """Certificate and key are opened one after the other: a renewal may replace them in between."""
    for left in reversed(range(_TRIES)):
        try:
            context.load_cert_chain(cert_file, key_file)
        except ssl.SSLError as error:
            if error.reason != "KEY_VALUES_MISMATCH" or left == 0:
                raise
        else:
            return


def _private(tls: TlsSettings, context: ssl.SSLContext) -> list[dict[str, object]]:
    return [] if tls.ca_file is None else [dict(one) for one in context.get_ca_certs()]


def _stamps(tls: TlsSettings) -> tuple[object, ...]:
    """A value that changes when a file does."""
    stamps: list[object] = []
    for path in (tls.ca_file, tls.cert_file, tls.key_file):
        try:
            status = None if path is None else path.stat()
        except OSError as error:
            stamps.append(str(error))
        else:
            stamps.append(status and (status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def _socket_class(trust: TlsContexts) -> type[ssl.SSLSocket]:
    """A socket class that reports events to ``trust``, in the thread that uses the socket."""

    class TlsSocket(ssl.SSLSocket):
        """Closes itself if the handshake fails, which paho does not."""

        def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - the standard library's signature
            try:
                super().do_handshake(block)
            except BaseException as error:
                if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == NOT_YET_VALID:
                    trust.on_early()
                elif isinstance(error, ssl.SSLError):
                    trust.on_alert(error.reason or "")
                self.close()
                raise
            trust.on_shaken()

        def read(self, len: int = 1024, buffer: Any = None) -> bytes:  # noqa: A002 - as above
            try:
                count = super().read(len, buffer)
            except ssl.SSLError as error:  # TLS 1.3: the peer judges our certificate after the handshake
                trust.on_alert(error.reason or "")
                raise
            if count:
                trust.on_data()
            return count

    return TlsSocket
