"""Certificates of people: checked by the console, without the authority's key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from coordinator.identity.authority import PERSON_PREFIX, Pair
from coordinator.identity.certificates import Key, common_name
from protocol.base import is_name
from protocol.errors import Misconfigured, Reason, Refused
from runtime.storage.files import disk_errors

_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)


@dataclass(frozen=True, slots=True)
class PersonCertificate:
    """What a sound certificate says. ``serial``: hexadecimal; ``not_after``: Unix seconds."""

    name: str
    serial: str
    not_after: float


class PersonCertificates:
    """Reads the certificates that browsers present.

    Args:
        file: the authority's certificate.

    Raises:
        Misconfigured: it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        try:
            with disk_errors(file):
                self._ca = x509.load_pem_x509_certificate(file.read_bytes())
        except ValueError as error:
            raise Misconfigured(f"{file}: not a certificate ({error}); restore it from a backup") from None

    def read(self, der: bytes, now: float) -> PersonCertificate:
        """The person whom a certificate names; whether it still counts is in the tables.

        Raises:
            Refused: UNTRUSTED: another authority's, not of this time, or not a person's.
        """
        try:
            found = x509.load_der_x509_certificate(der)
            found.verify_directly_issued_by(self._ca)
        except (*_UNREADABLE, InvalidSignature):
            raise Refused(Reason.UNTRUSTED, "the certificate is not of this fleet's authority") from None
        begin, end = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
        if not begin <= now < end:
            raise Refused(
                Reason.EXPIRED, "the certificate has expired; lichen console person renew makes another"
            )
        name = common_name(found)
        person = name.removeprefix(PERSON_PREFIX)
        if person == name or not is_name(person):
            raise Refused(
                Reason.UNTRUSTED,
                f"the certificate is that of {name[:80]!r}, no person's: those of devices sign nobody in",
            )
        return PersonCertificate(person, format(found.serial_number, "x"), end)


def as_pkcs12(pair: Pair, ca_pem: str, name: str, password: str) -> bytes:
    """Key, certificate and the authority's certificate for a browser, in one encrypted file."""
    key = load_pem_private_key(pair.key_pem, None)
    certificate = x509.load_pem_x509_certificate(pair.certificate_pem.encode())
    ca = x509.load_pem_x509_certificate(ca_pem.encode())
    if not isinstance(key, Key):
        raise TypeError(f"a key of type {type(key).__name__}")
    words = BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [ca], words)
