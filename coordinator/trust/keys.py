"""Ed25519 keys in PEM files (PKCS#8, 0600). A root key may be encrypted, or a public key alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protocol.errors import Misconfigured
from protocol.trust.signing import Envelope, PublicKey
from runtime.storage.files import disk_errors, write_atomic

if TYPE_CHECKING:  # loaded on first use: most fleets have no keys
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Key:
    """``secret`` is None if only the public key is here."""

    public: PublicKey
    secret: "Ed25519PrivateKey | None"

    @classmethod
    def new(cls) -> "Key":
        """A new key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

        return cls.of(Ed25519PrivateKey.generate())

    @classmethod
    def of(cls, secret: "Ed25519PrivateKey") -> "Key":
        """The key with its public part."""
        return cls(_public(secret.public_key()), secret)

    def save(self, file: Path, passphrase: bytes | None = None) -> None:
        """Write the secret key; without a passphrase, not encrypted.

        Raises:
            Misconfigured: the folder denies access, or the file exists.
            Transient: the disk is full.
            ValueError: there is no secret key.
        """
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        if self.secret is None:
            raise ValueError("a public key alone is not saved")
        if file.exists():
            raise Misconfigured(f"{file}: the file exists; keys are not overwritten")
        how: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            how = serialization.BestAvailableEncryption(passphrase)
        form = serialization.PrivateFormat.PKCS8
        write_atomic(file, self.secret.private_bytes(serialization.Encoding.PEM, form, how))

    @classmethod
    def load(cls, file: Path, passphrase: bytes | None = None) -> "Key":
        """Read a private or a public key.

        Raises:
            Misconfigured: the file is missing, denies access, has another passphrase, or holds no Ed25519
                key.
        """
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

        with disk_errors(file):
            try:
                data = file.read_bytes()[:_MAX_BYTES]
            except FileNotFoundError:
                raise Misconfigured(f"{file}: no such key file") from None
        if b"PUBLIC KEY" in data:
            return _load_public(file, data)
        try:
            secret = serialization.load_pem_private_key(data, passphrase)
        except TypeError:
            lacking = "encrypted: give --passphrase-file" if passphrase is None else "not encrypted"
            raise Misconfigured(f"{file}: {lacking}") from None
        except (ValueError, UnsupportedAlgorithm):
            raise Misconfigured(f"{file}: not a key in PEM, or another passphrase") from None
        if not isinstance(secret, Ed25519PrivateKey):
            raise Misconfigured(f"{file}: not an Ed25519 key")
        return cls.of(secret)

    def signs(self, envelope: Envelope) -> Envelope:
        """The metadata with this key's signature.

        Raises:
            ValueError: there is no secret key.
        """
        if self.secret is None:
            raise ValueError("a public key alone does not sign")
        return envelope.signed_by(self.public, self.secret)


def _load_public(file: Path, data: bytes) -> Key:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise Misconfigured(f"{file}: not an Ed25519 key")
    return Key(_public(key), None)


def _public(key: "Ed25519PublicKey") -> PublicKey:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    return PublicKey.ed25519(key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))
