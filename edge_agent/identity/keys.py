"""Keys, requests and certificates; answers are checked, because the coordinator could be wrong.

P-256 with SHA-256 everywhere; PKCS#10 (RFC 2986), PKCS#8 (RFC 5208), X.509 (RFC 5280).
"""

import base64
import hashlib
import itertools
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocol.errors import Misconfigured, Reason, Refused

Key = ec.EllipticCurvePrivateKey
_MAX_CHAIN: Final = 4
_RENEWAL: Final = b"lichen renew v1\n"
_HOUR_S: Final = 3600.0


@dataclass(frozen=True)
class CertificateInfo:
    """The content of a certificate; times in Unix seconds."""

    not_before: float
    not_after: float
    serial: str

    def issued_at(self, told: float | None) -> float:
        """When it was issued: by the service's clock, within the certificate's dates."""
        return self.not_before if told is None else min(max(told, self.not_before), self.not_after)


def new_key() -> Key:
    """A fresh key from the system's randomness."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """PKCS#8, not encrypted: the device must start without a person."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes, where: str) -> Key:
    """Read a private key; ``pem`` may hold a certificate before it.

    Raises:
        Misconfigured: there is no P-256 key in it.
    """
    begin = max(0, pem.find(b"-----BEGIN PRIVATE KEY-----"))
    try:
        key = serialization.load_pem_private_key(pem[begin:], password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Misconfigured(f"{where}: no private key can be read from it") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Misconfigured(f"{where}: not a P-256 key")
    return key


def key_print(key: Key) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo), to compare with ``lichen device ls``."""
    return hashlib.sha256(_public_bytes(key.public_key())).hexdigest()


def request_pem(key: Key, device: str) -> str:
    """A PKCS#10 request of this key under this name."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def sign_renewal(key: Key, request: str) -> str:
    """Base64 of the old key's signature over the new request (``protocol.enrolment.RenewRequest``)."""
    return base64.b64encode(key.sign(_RENEWAL + request.encode(), ec.ECDSA(hashes.SHA256()))).decode()


def authority_of(pem: bytes, sha256: str) -> str | None:
    """The certificate in ``pem`` whose DER has this SHA-256, as PEM; None: there is none."""
    for one in _certificates(pem, "the answer"):
        der = one.public_bytes(serialization.Encoding.DER)
        if hashlib.sha256(der).hexdigest() == sha256:
            return one.public_bytes(serialization.Encoding.PEM).decode()
    return None


def fingerprints(pem: bytes) -> list[str]:
    """SHA-256 of each certificate's DER."""
    certificates = _certificates(pem, "the answer")
    return [hashlib.sha256(c.public_bytes(serialization.Encoding.DER)).hexdigest() for c in certificates]


def certificates_pem(pem: bytes, where: str) -> str:
    """Only the certificates of a file, without the key beside them.

    Raises:
        Misconfigured: there is none.
    """
    try:
        found = _certificates(pem, where)
    except Refused as error:
        raise Misconfigured(f"{where}: {error.detail}") from None
    return "".join(one.public_bytes(serialization.Encoding.PEM).decode() for one in found)


def check(certificate: str, authority: str, key: Key, device: str) -> CertificateInfo:
    """Check that a certificate is the requested one.

    Args:
        certificate: PEM; the device's first, then any intermediate ones.
        authority: PEM; the trusted authority.
        key: the requested key.
        device: the requested name.

    Raises:
        Refused: it is malformed, for another key or name, or not signed by the authority.
    """
    chain = _certificates(certificate.encode(), "the certificate")
    roots = _certificates(authority.encode(), "the authority")
    leaf = chain[0]
    if _public(leaf) != _public_bytes(key.public_key()):
        raise Refused(Reason.MALFORMED, "the certificate in the answer is for another key than this device's")
    names = [str(one.value) for one in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [device]:
        raise Refused(
            Reason.WRONG_DEVICE, f"the certificate in the answer is for {names}, not for {device!r}"
        )
    if not _signed(chain, roots):
        raise Refused(Reason.MALFORMED, "the certificate in the answer is not signed by the authority")
    begin, end = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    if end - begin < _HOUR_S:
        raise Refused(Reason.OUT_OF_BOUNDS, "the certificate in the answer lasts less than an hour")
    return CertificateInfo(begin, end, format(leaf.serial_number, "x"))


def _certificates(pem: bytes, what: str) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion):
        raise Refused(Reason.MALFORMED, f"{what} is not a certificate in PEM") from None
    if len(found) > _MAX_CHAIN:
        raise Refused(
            Reason.TOO_LARGE, f"{what} has {len(found)} certificates; at most {_MAX_CHAIN} are taken"
        )
    return found


def _signed(chain: list[x509.Certificate], roots: list[x509.Certificate]) -> bool:
    """Whether each is signed by the next, and the last by a root."""
    inner = all(_issued(one, above) for one, above in itertools.pairwise(chain))
    return inner and any(_issued(chain[-1], r) for r in roots)


def _issued(one: x509.Certificate, above: x509.Certificate) -> bool:
    try:
        if not above.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        one.verify_directly_issued_by(above)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return True


def _public(certificate: x509.Certificate) -> bytes:
    try:
        return certificate.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except (ValueError, UnsupportedAlgorithm):
        raise Refused(
            Reason.MALFORMED, "the certificate in the answer has a key of an unknown kind"
        ) from None


def _public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
