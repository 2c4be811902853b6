"""Masks: the stream of ChaCha20 as elements of the ring (RFC 8439). Pure.

Each key makes one mask. The stream is read in blocks, so a mask of any length takes 128 KiB.
"""

from typing import Final

import numpy as np

from protocol.secure_aggregation.ring import Words

KEY_BYTES: Final = 32
_BLOCK: Final = 1 << 16
_NO_NONCE: Final = bytes(16)
"""Counter and nonce: a key is used once."""


def add_mask(total_N: Words, key: bytes, *, minus: bool = False) -> None:
    """Add the mask of a key to a vector in place, or subtract it.

    Args:
        total_N: the vector, contiguous.
        key: 32 bytes.
        minus: subtract.
    """
    from cryptography.hazmat.primitives.ciphers import (  # noqa: PLC0415 - 9 MB, where nothing is masked
        Cipher,
        algorithms,
    )

    stream = Cipher(algorithms.ChaCha20(key, _NO_NONCE), mode=None).encryptor()
    block = min(_BLOCK, total_N.nbytes)
    zeros, buffer = bytes(block), bytearray(block)
    mask_B = np.frombuffer(buffer, total_N.dtype)
    change = np.subtract if minus else np.add
    for start in range(0, total_N.size, mask_B.size or 1):
        part = total_N[start : start + mask_B.size]
        stream.update_into(zeros, buffer)
        change(part, mask_B[: part.size], out=part)
