"""Whole numbers modulo a power of two: words in memory, and their bytes on the wire. Pure.

A vector is an array of unsigned words that are at least as wide as the ring; what is above the ring's bits
means nothing until it is packed. So sums are plain additions, and a mask is any words.

Shapes: N elements.
"""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Reason, Refused

RingBits = Literal[16, 24, 32, 48, 64]
RINGS: Final[tuple[RingBits, ...]] = (16, 24, 32, 48, 64)
_WORDS: Final[dict[int, "np.dtype[np.unsignedinteger]"]] = {
    16: np.dtype("<u2"),
    24: np.dtype("<u4"),
    32: np.dtype("<u4"),
    48: np.dtype("<u8"),
    64: np.dtype("<u8"),
}
Words = NDArray[np.unsignedinteger]


def word_of(bits: int) -> np.dtype[np.unsignedinteger]:
    """The word that holds an element."""
    return _WORDS[bits]


def top_of(bits: int) -> int:
    """The largest magnitude of a signed number in the ring."""
    return (1 << (bits - 1)) - 1


def zeros(size: int, bits: int) -> Words:
    """An empty sum."""
    return np.zeros(size, word_of(bits))


def to_words(values_N: NDArray[np.int64], bits: int) -> Words:
    """Signed numbers as elements of the ring.

    Raises:
        Refused: one is beyond the ring.
    """
    top = top_of(bits)
    if values_N.size and (int(values_N.max()) > top or int(values_N.min()) < -top):
        far = int(np.abs(values_N).max())
        raise Refused(Reason.OUT_OF_BOUNDS, f"the number {far} does not fit a ring of {bits} bits")
    return values_N.astype(word_of(bits))


def to_numbers(words_N: Words, bits: int) -> NDArray[np.int64]:
    """The signed numbers nearest to zero that the elements stand for."""
    wide_N = words_N.astype(np.uint64)
    shift = np.uint64(64 - bits)
    wide_N <<= shift
    numbers_N = wide_N.view(np.int64)
    numbers_N >>= np.int64(64 - bits)  # moves the sign down
    return numbers_N


def packed(words_N: Words, bits: int) -> bytes:
    """``bits / 8`` bytes an element, little end first."""
    if bits == 8 * words_N.itemsize:
        return words_N.tobytes()
    return (
        np.ascontiguousarray(words_N).view(np.uint8).reshape(-1, words_N.itemsize)[:, : bits // 8].tobytes()
    )


def unpacked(data: bytes, size: int, bits: int) -> Words:
    """The inverse of :func:`packed`.

    Raises:
        Refused: the length is another one.
    """
    if len(data) != size * bits // 8:
        wanted = size * bits // 8
        raise Refused(
            Reason.WRONG_TENSORS,
            f"masked vector of {len(data)} bytes; {size} elements of {bits} bits are {wanted}",
        )
    word = word_of(bits)
    if bits == 8 * word.itemsize:
        words_N: Words = np.frombuffer(data, word).copy()
        return words_N
    bytes_NW = np.zeros((size, word.itemsize), np.uint8)
    bytes_NW[:, : bits // 8] = np.frombuffer(data, np.uint8).reshape(size, bits // 8)
    wide_N: Words = bytes_NW.reshape(-1).view(word)
    return wide_N
