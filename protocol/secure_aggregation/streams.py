"""Random bytes from a key, for numbers that must be the same after a restart. Pure."""

from collections.abc import Callable


def stream_of(key: bytes) -> Callable[[int], bytes]:
    """A function that returns the next bytes of ChaCha20's stream; the key is used for nothing else.

    Args:
        key: 32 random bytes.
    """
    from cryptography.hazmat.primitives.ciphers import (  # noqa: PLC0415 - see masks
        Cipher,
        algorithms,
    )

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: stream.update(bytes(count))
