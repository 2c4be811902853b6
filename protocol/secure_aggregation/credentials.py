"""Who announced a key: signatures by the private key of a device's certificate (ADR 12). Pure.

ECDSA over P-256 with SHA-256. The certificate's dates are not read, because a device's clock may be an hour
off, and a certificate that ran out does not pass the broker. ``cryptography`` is imported where it is used.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from protocol.errors import Misconfigured, Reason, Refused
from protocol.secure_aggregation.attempt import Attempt

MAX_CERTIFICATE: Final = 2048
"""Bytes of one certificate in DER."""
_PRIVATE: Final = b"-----BEGIN PRIVATE KEY-----"
_STATEMENT: Final = b"lichen secure aggregation keys v1\n"


class KeySigner(Protocol):
    """Signs with the device's identity."""

    @property
    def certificate(self) -> bytes:
        """The device's certificate in DER, issued by the authority."""

    def sign(self, statement: bytes) -> bytes:
        """ECDSA over SHA-256, in DER."""


@dataclass(frozen=True)
class IdentitySigner:
    """Signs with a P-256 key.

    Args:
        certificate: of the device, DER.
        key: an ``EllipticCurvePrivateKey`` of ``cryptography``.
    """

    certificate: bytes
    key: Any = field(repr=False)

    def sign(self, statement: bytes) -> bytes:
        """See :class:`KeySigner`."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA  # noqa: PLC0415 - see the module
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

        signature: bytes = self.key.sign(statement, ECDSA(SHA256()))
        return signature


def statement(attempt: Attempt, device: str, cipher: bytes, mask: bytes) -> bytes:
    """What a device signs: its name, its two public keys, and the attempt that they are for."""
    return _STATEMENT + attempt.digest + hashlib.sha256(device.encode()).digest() + cipher + mask


@dataclass(frozen=True)
class KeyAuthority:
    """The fleet's authority, whose certificates bind names to keys.

    Args:
        certificates: of the authority, DER; one or more, while it is being exchanged.
    """

    certificates: tuple[bytes, ...]

    def verify(self, device: str, certificate: bytes, signature: bytes, signed: bytes) -> None:
        """Check that the holder of a device's certificate has signed a statement.

        Raises:
            Refused: UNTRUSTED, in words: the certificate is not the authority's or another device's, or the
                signature is wrong.
            Misconfigured: the authority's own certificate cannot be read.
        """
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see the module
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

        name, key = certificate_holder(self.certificates, certificate)
        if name != device:
            raise Refused(
                Reason.UNTRUSTED, f"the keys of device {device!r} come with a certificate of {name!r}"
            )
        try:
            key.verify(signature, signed, ECDSA(SHA256()))
        except InvalidSignature:
            raise Refused(
                Reason.UNTRUSTED, f"the keys of device {device!r} are not signed by its certificate's key"
            ) from None


@lru_cache(maxsize=4096)
def certificate_holder(authority: tuple[bytes, ...], certificate: bytes) -> tuple[str, Any]:
    """Name and public key in a certificate of this authority; the same ones come in every round."""
    from cryptography import x509  # noqa: PLC0415 - see the module
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    unreadable = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
    try:
        roots = [x509.load_der_x509_certificate(one) for one in authority]
    except unreadable:
        raise Misconfigured("the certificate of the fleet's authority cannot be read") from None
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        names = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = leaf.public_key()
    except unreadable:
        raise Refused(Reason.UNTRUSTED, "a device's certificate cannot be read") from None
    for root in roots:
        try:
            leaf.verify_directly_issued_by(root)
        except (*unreadable, InvalidSignature):
            continue
        if len(names) == 1 and isinstance(key, EllipticCurvePublicKey):
            return str(names[0].value), key
    raise Refused(Reason.UNTRUSTED, "a device's certificate is not of the fleet's authority")


def authority_of(pem: bytes) -> KeyAuthority:
    """The authority whose certificates are in ``pem``.

    Raises:
        Misconfigured: there is none.
    """
    from cryptography import x509  # noqa: PLC0415 - see the module
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise Misconfigured("the certificate of the fleet's authority cannot be read") from None
    return KeyAuthority(tuple(one.public_bytes(Encoding.DER) for one in found))


def signer_of(pem: bytes) -> IdentitySigner:
    """The identity in a file with a certificate and its P-256 key.

    Raises:
        Misconfigured: one of them is missing.
    """
    from cryptography import x509  # noqa: PLC0415 - see the module
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        load_pem_private_key,
    )

    try:
        leaf = x509.load_pem_x509_certificates(pem)[0]
        key = load_pem_private_key(pem[max(0, pem.find(_PRIVATE)) :], password=None)
    except (ValueError, TypeError, IndexError):
        raise Misconfigured("the device's certificate or its key cannot be read") from None
    return IdentitySigner(leaf.public_bytes(Encoding.DER), key)
