"""Probe whether the broker uses the newest revocation list: it must refuse what only that list revokes.

Success of the reload command proves nothing: the broker may read its files later, or never. So each list
comes with a certificate that is used for nothing else and that the list revokes; a broker that refuses it has
read the list.
"""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ALERT_S: Final = 1.0
"""The broker refuses a certificate directly after the handshake; to detect acceptance the probe has to wait
this long."""
_GONE_S: Final = 1.0
"""If nothing listens, waiting longer is useless: a broker reads the list when it starts."""
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Probe:
    """Attributes: ``pair`` and ``ca``, PEM files; ``host`` and ``port``, the broker's address from here."""

    pair: Path
    ca: Path
    host: str
    port: int

    def until_revoked(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> str:
        """Connect until the broker refuses the certificate as revoked; once at least.

        Returns:
            What the broker did instead; empty: it uses the list.
        """
        begun, listens = clock(), False
        while True:
            try:
                if not (words := self._ask()):
                    return ""
                listens = True
            except OSError as error:
                words = f"{self.host}:{self.port} does not answer ({error.strerror or error})"
            if clock() - begun >= (limit_s if listens else min(limit_s, _GONE_S)):
                return words
            time.sleep(_POLL_S)

    def _ask(self) -> str:
        where = f"{self.host}:{self.port}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the probe tests the broker's list, not the broker's identity
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.pair)
        with socket.create_connection((self.host, self.port), timeout=_ALERT_S) as raw:
            try:
                with context.wrap_socket(raw) as shaken:
                    shaken.recv(1)
            except TimeoutError:
                return f"{where} accepts a certificate that the newest list revokes"
            except ssl.SSLError as error:
                return "" if "REVOKED" in (error.reason or "") else f"{where}: {error}"
            except OSError as error:
                return f"{where} ended the connection without a reason ({error.strerror or error})"
        return f"{where} ended the connection without a reason"
