"""Texts as counts of hashed n-grams: what recordings and live sources make of a text. Pure; NumPy.

A text is put into Unicode's form NFKC and lower case; each stretch of white space becomes one space, and one
space is put before and behind it, so that the beginnings and ends of words count. Its n-grams are all
stretches of 3 to 5 characters. Each is hashed to 64 bits (FNV-1a over the code points of its characters) and
counted in the bucket ``hash mod buckets``: there is no vocabulary, and the same text gives the same counts on
every machine. Counts are whole numbers without a sign. Nothing leads back from counts to a text directly, but
the words of a short text can be guessed and compared: counts are as private as a text.

Shapes: n texts, V buckets, G n-grams.
"""

import unicodedata
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

SHORTEST: Final = 3
LONGEST: Final = 5
MAX_CHARACTERS: Final = 1 << 16
"""Of one text; what follows is not counted."""
_BASIS: Final = np.uint64(14695981039346656037)
_PRIME: Final = np.uint64(1099511628211)
_HALF: Final = np.uint64(32)


def counts_of(texts: Sequence[str], buckets: int) -> NDArray[np.float32]:
    """``counts_nV``: the n-grams of each text, by bucket; zeros for a text without any."""
    counts = np.zeros((len(texts), buckets), np.float32)
    for n, text in enumerate(texts):
        counts[n] = np.bincount(_buckets(text, buckets), minlength=buckets)
    return counts


def _buckets(text: str, buckets: int) -> NDArray[np.int64]:
    """The bucket of each n-gram (G,)."""
    plain = " ".join(unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).lower().split())
    if not plain:
        return np.empty(0, np.int64)
    # surrogates that belong to no pair have no other encoding
    points = np.frombuffer(f" {plain} ".encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    hashes = []
    for size in range(SHORTEST, LONGEST + 1):
        count = len(points) - size + 1
        if count < 1:
            break
        h = np.full(count, _BASIS)
        for at in range(size):
            h = (h ^ points[at : at + count]) * _PRIME  # modulo 2^64
        hashes.append((h ^ (h >> _HALF)) % np.uint64(buckets))
    return np.concatenate(hashes).astype(np.int64)
