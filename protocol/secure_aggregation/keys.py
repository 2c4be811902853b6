"""Keys of one attempt: agreed between two neighbours, and used for one purpose each. Pure.

X25519 (RFC 7748), HKDF with SHA-256 (RFC 5869), ChaCha20-Poly1305 (RFC 8439). Every derived key depends on
the attempt and on the names of both devices. ``cryptography`` is imported where a key is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, Self

from protocol.errors import Reason, Refused
from protocol.secure_aggregation.attempt import Attempt

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12
_ENTROPY: Final = 5 * KEY_BYTES


@dataclass(frozen=True)
class Secrets:
    """A device's secrets of one attempt; they are forgotten with it.

    Attributes:
        cipher: private key under which neighbours encrypt shares.
        mask: private key of the masks that are shared with neighbours.
        seed: of the mask that is the device's own.
        shares: from which the shares' coefficients are drawn.
        noise: from which the device's noise is drawn, if the task asks for some; empty: an earlier release
            drew none.
    """

    cipher: bytes = field(repr=False)
    mask: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    shares: bytes = field(repr=False)
    noise: bytes = field(repr=False, default=b"")

    entropy_bytes: ClassVar[int] = _ENTROPY

    @classmethod
    def of(cls, entropy: bytes) -> Self:
        """From random bytes of the system.

        Raises:
            ValueError: there are not ``entropy_bytes``.
        """
        if len(entropy) != _ENTROPY:
            raise ValueError(f"{len(entropy)} random bytes, {_ENTROPY} are needed")
        return cls(*(entropy[at : at + KEY_BYTES] for at in range(0, _ENTROPY, KEY_BYTES)))


def loaded(private: bytes) -> "X25519PrivateKey":
    """A private key to agree with; loading one costs as much as an agreement."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # noqa: PLC0415 - see the module
        X25519PrivateKey,
    )

    return X25519PrivateKey.from_private_bytes(private)


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return loaded(private).public_key().public_bytes_raw()


def agreed(private: "X25519PrivateKey", public: bytes, device: str) -> bytes:
    """The secret that two keys give, from either side.

    Args:
        private: own, of :func:`loaded`.
        public: of ``device``.
        device: for errors.

    Raises:
        Refused: the public key is a point of low order, which gives the same secret with every key.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # noqa: PLC0415 - see the module
        X25519PublicKey,
    )

    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise Refused(Reason.MALFORMED, f"the public key of device {device!r} is no key") from None


def derived(secret: bytes, attempt: Attempt, purpose: str, *devices: str) -> bytes:
    """A key of 32 bytes for one purpose between these devices, in this order."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - see the module
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    info = "\n".join((purpose, *devices)).encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=attempt.digest, info=info).derive(secret)


def pair_mask_keys(
    attempt: Attempt, device: str, private: bytes, publics: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The keys of the masks of a device and each of its neighbours, by the neighbour's name.

    Args:
        attempt: of the round.
        device: whose private key it is.
        private: for masks.
        publics: the neighbours' public keys for masks.

    Raises:
        Refused: a public key is none.
    """
    own = loaded(private)
    return {
        name: derived(agreed(own, public, name), attempt, "pairwise mask", *sorted((device, name)))
        for name, public in publics.items()
    }


def own_mask_key(attempt: Attempt, device: str, seed: bytes) -> bytes:
    """The key of the mask that is a device's own."""
    return derived(seed, attempt, "own mask", device)


@dataclass(frozen=True)
class ShareChannel:
    """Encrypts what one neighbour tells another in one attempt.

    Args:
        attempt: of the round.
        private: the own cipher key.
    """

    attempt: Attempt
    private: bytes = field(repr=False)

    def encrypt(self, sender: str, receiver: str, public: bytes, text: bytes, nonce: bytes) -> bytes:
        """The nonce, then the encrypted text with its tag.

        Args:
            sender: this device.
            receiver: the neighbour.
            public: its cipher key.
            text: to encrypt.
            nonce: 12 random bytes.

        Raises:
            Refused: the public key is none.
        """
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415

        key = self._key(sender, receiver, public, receiver)
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, self._bound(sender, receiver))

    def decrypt(self, sender: str, receiver: str, public: bytes, data: bytes) -> bytes:
        """The text; ``public`` is the sender's cipher key, ``receiver`` this device.

        Raises:
            Refused: it was not encrypted for this attempt, by this sender, for this receiver.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see the module
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415

        key = self._key(sender, receiver, public, sender)
        nonce, rest = data[:NONCE_BYTES], data[NONCE_BYTES:]
        try:
            return ChaCha20Poly1305(key).decrypt(nonce, rest, self._bound(sender, receiver))
        except (InvalidTag, ValueError):
            raise Refused(
                Reason.UNTRUSTED,
                f"the shares from device {sender!r} for {receiver!r} cannot be opened: they are forged, "
                f"damaged, or not of {self.attempt.words}",
            ) from None

    def _key(self, sender: str, receiver: str, public: bytes, other: str) -> bytes:
        secret = agreed(self._loaded, public, other)
        return derived(secret, self.attempt, "shares", sender, receiver)

    @cached_property
    def _loaded(self) -> "X25519PrivateKey":
        return loaded(self.private)

    def _bound(self, sender: str, receiver: str) -> bytes:
        return self.attempt.digest + f"{sender}\n{receiver}".encode()
