"""A stream of secret random bits that a key decides: repeated, it gives the same bits.

SHAKE-256 of the key and a counter (FIPS 202), of Python's own library: a coordinator needs no further
package for it, and every machine gives the same bytes.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

KEY_BYTES: Final = 32
_BLOCK_BYTES: Final = 1 << 20
_LABEL: Final = b"lichen noise 1"


def derived_key(secret: bytes, about: Iterable[str]) -> bytes:
    """A key for one purpose: HMAC-SHA256, as HKDF expands a uniform key (RFC 5869).

    Args:
        secret: of 32 bytes.
        about: what it is for; texts of any length, in order.

    Raises:
        ValueError: the secret has another length.
    """
    if len(secret) != KEY_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes; it must have {KEY_BYTES}")
    digests = b"".join(hashlib.sha256(text.encode()).digest() for text in about)
    return hmac.digest(secret, _LABEL + digests, "sha256")


class KeyStream:
    """Reads the stream of one key from its beginning.

    Args:
        key: of 32 bytes; never used for another stream.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes; it must have {KEY_BYTES}")
        self._key = key
        self._counter = 0
        self._left = b""

    def take(self, size: int) -> bytes:
        """The next bytes."""
        parts, found = [self._left], len(self._left)
        while found < size:
            block = self._key + self._counter.to_bytes(8, "big")
            parts.append(hashlib.shake_256(block).digest(_BLOCK_BYTES))
            self._counter += 1
            found += _BLOCK_BYTES
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next ``count`` numbers of 64 bits, (N,)."""
        return np.frombuffer(self.take(8 * count), "<u8")
