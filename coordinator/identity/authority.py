"""The fleet's private certificate authority: one folder, created once, never overwritten.

``authority/`` holds ``ca.key`` (0600), ``ca.crt`` and ``authority.json`` (the fleet and its hosts).
``ca.key`` can certify any device name: back it up as a secret, and keep the folder off shared disks.
"""

import contextlib
import ipaddress
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field, ValidationError

from coordinator.identity import certificates
from coordinator.identity.certificates import CLIENT, SERVER, Key, Presented, PublicKey, Revoked, Span
from protocol.base import NAME_ERROR, Name, Wire
from protocol.enrolment import coordinator_name
from protocol.errors import Misconfigured
from runtime.storage.files import disk_errors, sync_folder, write_atomic

OBSERVER_NAME: Final = "@observer"
"""Common name in the certificate of ``lichen status``: it may read the fleet's topics and write none."""
PROBE_NAME: Final = "@probe"
"""Common name of a certificate that is revoked when it is issued (``coordinator.identity.revocation_probe``).
"""
PERSON_PREFIX: Final = "person+"
"""Begins the common name of a person's certificate. No device has such a name, and Mosquitto gives no
topic to a user with ``+`` in the name."""
FOLDER: Final = "authority"
_KEY, _CERTIFICATE, _FACTS = "ca.key", "ca.crt", "authority.json"
_DAY_S: Final = 86400.0
_CA_YEARS: Final = 20
_SERVICE_DAYS: Final = 730
"""Validity of the certificates of broker, enrolment service, coordinator and observer; the coordinator renews
them."""
_BACKDATE_S: Final = _DAY_S
"""Certificates are valid from a day earlier, because a peer's clock may be late."""

Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9_:.-]{1,253}$")]


class CertificateFacts(Wire):
    """``authority.json``."""

    fleet: Name
    hosts: Annotated[tuple[Host, ...], Field(min_length=1, max_length=64)]


@dataclass(frozen=True, slots=True)
class Issued:
    """A newly signed certificate; ``not_after`` in Unix seconds."""

    certificate_pem: str
    serial: int
    not_after: float


@dataclass(frozen=True, slots=True)
class Pair(Issued):
    """A certificate and its key, which was generated here."""

    key_pem: bytes

    @property
    def both_pem(self) -> bytes:
        """Certificate and key for one file: replaced together, they always match."""
        return self.certificate_pem.encode() + self.key_pem


class Authority:
    """Signs certificates. Use :meth:`create` once, then :meth:`load`. Immutable, so thread-safe."""

    def __init__(
        self,
        folder: Path,
        key: Key,
        certificate: x509.Certificate,
        facts: CertificateFacts,
        wall: Callable[[], float],
    ) -> None:
        self.folder = folder
        self.fleet = facts.fleet
        self.hosts = facts.hosts
        self._key = key
        self._certificate = certificate
        self._wall = wall

    @classmethod
    def create(
        cls, folder: Path, fleet: str, hosts: Sequence[str], *, wall: Callable[[], float] = time.time
    ) -> Self:
        """Create the authority; the folder appears complete or not at all.

        Raises:
            Misconfigured: an authority exists, a host is not valid, or the disk denies access.
            Transient: the disk is full.
        """
        facts = checked_facts(fleet, hosts)
        key, now = certificates.new_key(), wall()
        span = Span(now - _BACKDATE_S, now + _CA_YEARS * 365.25 * _DAY_S)
        certificate = certificates.self_signed(key, fleet, span)
        with disk_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))  # mode 0700
        try:
            write_atomic(made / _KEY, certificates.key_pem(key))
            write_atomic(made / _CERTIFICATE, certificates.pem(certificate).encode())
            write_atomic(made / _FACTS, facts.model_dump_json().encode())
            with disk_errors(folder), _taken_means(folder):
                # rename replaces an empty folder, never one with an authority in it.
                made.rename(folder)
                sync_folder(folder.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return cls(folder, key, certificate, facts, wall)

    @classmethod
    def load(cls, folder: Path, *, wall: Callable[[], float] = time.time) -> Self:
        """Read the authority.

        Raises:
            Misconfigured: there is no authority, a file is damaged, other users may read the key, or key and
                certificate do not match.
        """
        file = folder / _KEY
        try:
            if file.stat().st_mode & 0o077:
                raise Misconfigured(f"{file}: others may read the authority's key; chmod 600 {file}")
            key = serialization.load_pem_private_key(file.read_bytes(), None)
            file = folder / _CERTIFICATE
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            file = folder / _FACTS
            facts = CertificateFacts.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            raise Misconfigured(
                f"{file} is not there; make the fleet's authority with: lichen coordinator init"
            ) from None
        except (OSError, ValueError, TypeError, ValidationError) as error:
            raise Misconfigured(
                f"{file}: cannot be read: {error}; put the authority's folder back from its backup"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
            raise Misconfigured(
                f"{folder}: {_KEY} is not the key of {_CERTIFICATE}; restore both from a backup"
            )
        return cls(folder, key, certificate, facts, wall)

    def with_hosts(self, hosts: Sequence[str]) -> "Authority":
        """The same authority with these hosts, written to disk if they differ.

        Raises:
            Misconfigured: a host is not valid.
            Transient: the disk is full.
        """
        facts = checked_facts(self.fleet, hosts)
        if facts.hosts != self.hosts:
            write_atomic(self.folder / _FACTS, facts.model_dump_json().encode())
        return Authority(self.folder, self._key, self._certificate, facts, self._wall)

    @property
    def ca_pem(self) -> str:
        """The authority's certificate."""
        return certificates.pem(self._certificate)

    @property
    def ca_sha256(self) -> str:
        """SHA-256 of the authority's certificate (DER), as in an invite."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def not_after(self) -> float:
        """When the authority's certificate expires, Unix seconds."""
        return self._certificate.not_valid_after_utc.timestamp()

    def issue_device(self, csr_pem: str, device: str, days: float = 90.0) -> Issued:
        """Sign a device's request; only its public key is used.

        Raises:
            Refused: the request is not valid.
        """
        return self._issue(certificates.requested_key(csr_pem), device, days, CLIENT)

    def issue_server(self, hosts: Sequence[str] | None = None) -> Pair:
        """Key and certificate of a server at these hosts (default: the authority's hosts).

        Raises:
            Misconfigured: a host is not valid.
        """
        hosts = self.hosts if hosts is None else tuple(hosts)
        return self._pair(hosts[0][:64], SERVER, hosts)

    def issue_coordinator(self, task: str | None = None) -> Pair:
        """Key and certificate of the coordinator as a client of the broker.

        Args:
            task: the further task of that link; None: the fleet's main task.
        """
        return self._pair(coordinator_name(task), CLIENT)

    def issue_observer(self) -> Pair:
        """Key and certificate of ``lichen status``, which reads the fleet's topics and writes none."""
        return self._pair(OBSERVER_NAME, CLIENT)

    def issue_probe(self) -> Pair:
        """Key and certificate that a broker refuses once it has read the newest revocation list."""
        return self._pair(PROBE_NAME, CLIENT)

    def issue_person(self, person: str, days: float) -> Pair:
        """Key and certificate of a person for the console, as a client."""
        return self._pair(PERSON_PREFIX + person, CLIENT, days=days)

    def presented(self, certificate: x509.Certificate) -> Presented:
        """The facts that the identity store checks of a device's certificate of this authority."""
        issued = certificate.not_valid_before_utc.timestamp() + _BACKDATE_S
        return Presented(certificate.serial_number, issued, certificate.not_valid_after_utc.timestamp())

    def signed_by_us(self, certificate: x509.Certificate) -> bool:
        """Whether this authority's key signed it; time and revocation are not checked."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        return True

    def crl_pem(self, revoked: Iterable[Revoked], *, number: int = 1, begin: float | None = None) -> bytes:
        """The certificate revocation list.

        It is valid as long as the authority: an expired list would lock the whole fleet out of the broker,
        and this list is rewritten at each revocation, not by the calendar.

        Args:
            revoked: the certificates to list.
            number: larger than the number of the list before.
            begin: valid from, Unix seconds; later than the list before, because OpenSSL uses the newest of
                several lists.
        """
        begin = self._wall() - _BACKDATE_S if begin is None else begin
        return certificates.revocation_list(
            self._key, self._certificate, revoked, number, Span(begin, self.not_after)
        )

    def _pair(
        self,
        name: str,
        purpose: x509.ObjectIdentifier,
        hosts: Sequence[str] = (),
        *,
        days: float = _SERVICE_DAYS,
    ) -> Pair:
        key = certificates.new_key()
        made = self._issue(key.public_key(), name, days, purpose, hosts)
        return Pair(made.certificate_pem, made.serial, made.not_after, certificates.key_pem(key))

    def _issue(
        self,
        public: PublicKey,
        name: str,
        days: float,
        purpose: x509.ObjectIdentifier,
        hosts: Sequence[str] = (),
    ) -> Issued:
        now = self._wall()
        span = Span(now - _BACKDATE_S, now + days * _DAY_S)
        made = certificates.signed(
            self._key, self._certificate, public, name, span, purpose=purpose, hosts=hosts
        )
        return Issued(certificates.pem(made), made.serial_number, made.not_valid_after_utc.timestamp())


def checked_facts(fleet: str, hosts: Sequence[str]) -> CertificateFacts:
    """Fleet and hosts, each host once.

    Raises:
        Misconfigured: the fleet or a host is not valid.
    """
    try:
        return CertificateFacts(fleet=fleet, hosts=tuple(dict.fromkeys(as_certified(host) for host in hosts)))
    except ValidationError as error:
        wrong = error.errors()[0]
        where = "fleet" if wrong["loc"][0] == "fleet" else "--host"
        if wrong["type"] == NAME_ERROR:
            words = wrong["msg"]
        elif wrong["type"] == "string_pattern_mismatch":
            words = (
                f"{wrong['input']!r} is not a host name or address: letters, digits, '_', '.', '-', ':' only"
            )
        else:
            words = f"{wrong['msg']}: {wrong['input']!r}"
        raise Misconfigured(f"{where}: {words}") from None


def as_certified(host: str) -> str:
    """An address in canonical form, a host name in lower case, as in our certificates."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


@contextlib.contextmanager
def _taken_means(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        if os.path.lexists(folder / _KEY):
            raise Misconfigured(f"{folder}: there is an authority already; it is never overwritten") from None
        raise
