"""X.509 certificates of this authority: pure functions over keys and names (RFC 5280, PKCS#10 of RFC 2986).

EC P-256 and SHA-256 throughout. ``extendedKeyUsage`` limits a device's certificate to clients, so it can
never pose as the broker or the enrolment service.
"""

import datetime as dt
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.enrolment import MAX_PEM
from protocol.errors import Misconfigured, Reason, Refused

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
_ORGANISATION: Final = "lichen"
_CURVE: Final = "secp256r1"
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
"""Errors of the parser on bytes that are not a certificate or request."""


@dataclass(frozen=True, slots=True)
class Presented:
    """A certificate of ours that a device presents for renewal; times in Unix seconds."""

    serial: int
    issued_wall: float
    not_after: float


@dataclass(frozen=True, slots=True)
class Span:
    """A period of validity, Unix seconds."""

    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Revoked:
    """A revoked certificate: its serial number, and when it was revoked, Unix seconds."""

    serial: int
    wall: float


def new_key() -> Key:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """PKCS#8, not encrypted: the file mode protects it, because the daemon starts unattended."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def pem(certificate: x509.Certificate) -> str:
    """A certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def key_print(key: PublicKey) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo in DER), hexadecimal."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    return digest.finalize().hex()


def requested_key(csr_pem: str) -> PublicKey:
    """The public key of a certificate request; its other fields are ignored.

    The kind of key is checked before the signature: checking a huge RSA key would cost seconds.

    Raises:
        Refused: not a PKCS#10 request, not a P-256 key, or not signed by that key.
    """
    if len(csr_pem) > MAX_PEM:
        raise Refused(Reason.TOO_LARGE, f"csr: {len(csr_pem)} characters; at most {MAX_PEM}")
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        key = _p256(request.public_key(), "csr")
        sound = request.is_signature_valid
    except _UNREADABLE:
        raise Refused(Reason.MALFORMED, "csr: not a PKCS#10 request with a P-256 key") from None
    if not sound:
        raise Refused(Reason.MALFORMED, "csr: it is not signed by the key it carries")
    return key


def read_certificate(text: str) -> tuple[x509.Certificate, PublicKey]:
    """The first certificate of a peer's PEM text, and its key.

    Raises:
        Refused: not a certificate, or its key is not P-256.
    """
    if len(text) > MAX_PEM:
        raise Refused(Reason.TOO_LARGE, f"certificate: {len(text)} characters; at most {MAX_PEM}")
    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
        return certificate, _p256(certificate.public_key(), "certificate")
    except _UNREADABLE:
        raise Refused(Reason.MALFORMED, "certificate: not an X.509 certificate with a P-256 key") from None


def _p256(key: object, what: str) -> PublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE:
        raise Refused(Reason.MALFORMED, f"{what}: its key is not EC P-256")
    return key


def common_name(certificate: x509.Certificate) -> str:
    """The single common name of the subject; empty if there is none or more than one."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def self_signed(key: Key, fleet: str, span: Span) -> x509.Certificate:
    """The authority's own certificate; it cannot sign further authorities (path length 0)."""
    subject = _subject(fleet, "authority")
    return (
        _builder(subject, subject, key.public_key(), span)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def signed(
    key: Key,
    ca: x509.Certificate,
    public: PublicKey,
    name: str,
    span: Span,
    *,
    purpose: x509.ObjectIdentifier,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """A leaf certificate.

    Args:
        key: the authority's key.
        ca: the authority's certificate.
        public: the holder's public key.
        name: the holder's common name.
        span: period of validity; cut to the authority's own.
        purpose: ``CLIENT`` or ``SERVER``.
        hosts: names and addresses of a server (``subjectAltName``).
    """
    begin, end = ca.not_valid_before_utc.timestamp(), ca.not_valid_after_utc.timestamp()
    within = Span(max(span.begin, begin), min(span.end, end))
    builder = (
        _builder(_subject(name), ca.subject, public, within)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256())


def revocation_list(
    key: Key, ca: x509.Certificate, revoked: Iterable[Revoked], number: int, span: Span
) -> bytes:
    """A certificate revocation list in PEM (RFC 5280 section 5)."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.subject)
        .last_update(_time(span.begin))
        .next_update(_time(span.end))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for one in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(one.serial).revocation_date(_time(one.wall))
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _builder(subject: x509.Name, issuer: x509.Name, public: PublicKey, span: Span) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(span.begin))
        .not_valid_after(_time(span.end))
    )


def _subject(name: str, unit: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANISATION)]
    if unit:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise Misconfigured(f"host {host!r}: neither an address nor a host name (write ASCII)") from None


def _time(wall: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(wall), dt.UTC)
