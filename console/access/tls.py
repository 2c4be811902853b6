"""TLS of the console: a given certificate, or one of the fleet's authority; and whose clients it believes."""

import asyncio
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity.authority import Authority
from coordinator.identity.enrolment import check_fleet
from coordinator.identity.paths import IdentityPaths, is_fresh
from coordinator.identity.person_certificates import PersonCertificates
from protocol.errors import LichenError, Misconfigured
from runtime.storage.files import write_atomic

log = structlog.get_logger(__name__)
FILE: Final = "console.pem"
"""In the folder of the coordinator's own certificates."""
_AGAIN_S: Final = 6 * 3600.0
_ANY: Final = frozenset({"", "*", "0.0.0.0", "::"})  # noqa: S104 - what an operator may write, recognized


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files that an operator gave: a certificate with its chain, and its key."""

    certificate: Path
    key: Path


class ConsoleTls:
    """The TLS context, with a certificate that is renewed while the console runs.

    Args:
        settings: of the coordinator.
        host: the address that the console listens on.
        hosts: further names under which browsers reach it.
        files: given ones; None: a certificate of the fleet's authority, made here.

    Raises:
        Misconfigured: a file cannot be used, or the fleet has no authority.
        Transient: the disk is full.
    """

    def __init__(
        self, settings: CoordinatorSettings, host: str, hosts: tuple[str, ...], files: TlsFiles | None
    ) -> None:
        self._settings = settings
        self._places = IdentityPaths.of(settings)
        self._asked = tuple(sorted({*hosts, host} - _ANY))
        self._files = files
        self.hosts: tuple[str, ...] = hosts
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.num_tickets = 0  # a resumed session would not be checked again
        self.context.options |= ssl.OP_NO_TICKET
        self.refresh()
        self.certificates = self._believe_people()

    def _believe_people(self) -> PersonCertificates | None:
        """Ask browsers for a certificate of the fleet's authority; one of another ends the connection."""
        file = self._places.authority / "ca.crt"
        if not file.is_file():
            return None
        found = PersonCertificates(file)
        self.context.load_verify_locations(file)
        self.context.verify_mode = ssl.CERT_OPTIONAL
        return found

    def refresh(self) -> None:
        """Read the certificate again, and renew one of ours. Raises as the class."""
        certificate, key = self._own() if self._files is None else (self._files.certificate, self._files.key)
        try:
            self.context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            what = "--tls-cert, --tls-key" if self._files is not None else str(certificate)
            words = f"{certificate} and {key}: not a certificate and its key ({error})"
            raise Misconfigured(f"{what}: {words}") from None

    def _own(self) -> tuple[Path, Path]:
        if not self._places.authority.is_dir():
            raise Misconfigured(
                f"TLS: {self._places.authority} is not there; give --tls-cert and --tls-key, or make the "
                "fleet's authority with: lichen coordinator init"
            )
        file = self._places.own / FILE
        with self._places.alone():
            authority = Authority.load(self._places.authority)
            check_fleet(authority, self._settings.fleet, self._places)
            self.hosts = tuple(dict.fromkeys([*authority.hosts, *self._asked]))
            if not is_fresh(file, authority, self.hosts, time.time()):
                write_atomic(file, authority.issue_server(self.hosts).both_pem)
        return file, file

    async def run(self) -> None:
        """Refresh for ever; a failure is logged, and the certificate of before goes on."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            try:
                await asyncio.to_thread(self.refresh)
            except LichenError as error:
                log.warning("certificate_not_renewed", why=str(error))
