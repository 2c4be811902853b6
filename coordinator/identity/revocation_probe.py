"""Whether the broker acts on the newest revocation list: it must refuse a certificate that only that one has.

A command that ends well shows nothing: the broker may read its files later, or never. So with each list a
certificate is made that nobody uses, and that the list takes back; the broker that turns it away has read it.
"""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ALERT_S: Final = 1.0
"""The broker refuses a certificate at once after the handshake; who shows one that it takes has to wait."""
_GONE_S: Final = 1.0
"""Where nothing listens, nothing is to be expected for longer: a broker reads the list when it starts."""
_STEP_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Probe:
    """Attributes: ``pair`` and ``ca``, PEM files; ``host`` and ``port``, of the broker, as we reach it."""

    pair: Path
    ca: Path
    host: str
    port: int

    def until_revoked(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> str:
        """Ask until the broker turns the certificate away as taken back; once at least.

        Returns:
            What the broker did instead; empty: it acts on the list.
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
            time.sleep(_STEP_S)

    def _ask(self) -> str:
        where = f"{self.host}:{self.port}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # it is asked what it knows, and not who it is
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.pair)
        with socket.create_connection((self.host, self.port), timeout=_ALERT_S) as raw:
            try:
                with context.wrap_socket(raw) as shaken:
                    shaken.recv(1)
            except TimeoutError:
                return f"{where} lets a certificate in that the newest list takes back"
            except ssl.SSLError as error:
                return "" if "REVOKED" in (error.reason or "") else f"{where}: {error}"
            except OSError as error:
                return f"{where} ended the connection without a reason ({error.strerror or error})"
        return f"{where} ended the connection without a reason"
