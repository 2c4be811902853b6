"""Features of short texts without a language model: weighted hashed character n-grams, then a truncated SVD.

Names and descriptions become counts of their character n-grams in a fixed number of buckets (K. Weinberger et
al., Feature Hashing for Large Scale Multitask Learning, ICML 2009), weighted by TF-IDF; the leading right
singular vectors of that sparse matrix (latent semantic analysis), found with random projections (N. Halko,
P.-G. Martinsson, J. A. Tropp, Finding Structure with Randomness, SIAM Review 53, 2011, algorithms 4.4, 5.1),
turn it into a few dense values. NumPy only; no word list, no vocabulary, any script.

Projections of features are averaged over clients, so all clients must read texts with *one* encoder that was
fitted once, on texts that may be shared.

The same texts and seed give the same bytes on one machine, and values within rounding on another.

Shapes: E texts, n n-grams of all of them, B buckets, F features, P columns of a projection.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray
from models.tensors import read_arrays, write_npz
from protocol.errors import Misconfigured

BUCKETS: Final = 1 << 14
LENGTHS: Final = (2, 3, 4)
"""Lengths of the n-grams, in characters; a text's ends count as spaces."""
MAX_CHARACTERS: Final = 4096
"""Characters of a text that are read."""
_OVERSAMPLING: Final = 10
_POWERS: Final = 3
"""Halko et al. recommend both numbers if singular values fall slowly, as those of texts do."""
_BLOCK: Final = 1 << 16
"""Entries of the sparse matrix that are multiplied at once: bounds the memory of a product."""
_GAP: Final = np.uint64(0x1F_FFFF)
"""Separates texts; above every character."""
_ODD: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX: Final = (
    (np.uint64(30), np.uint64(0xBF58_476D_1CE4_E5B9)),
    (np.uint64(27), np.uint64(0x94D0_49BB_1331_11EB)),
)
_KEYS: Final = ("idf", "basis")


@dataclass(frozen=True, eq=False)
class Counted:
    """A sparse matrix of n-gram counts, (E, B): entry i is at ``row_n[i], bucket_n[i]``; sorted by both."""

    texts: int
    row_n: NDArray[np.int64]
    bucket_n: NDArray[np.int64]
    count_n: FloatArray


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """Maps texts to features.

    Attributes:
        idf_B: float32, the weight of each bucket.
        basis_BF: float32, the contribution of a bucket to each feature.
    """

    idf_B: FloatArray
    basis_BF: FloatArray

    @classmethod
    def fit(cls, texts: Sequence[str], width: int, seed: int = 0, buckets: int = BUCKETS) -> "TextEncoder":
        """The encoder whose ``width`` features keep most of the differences between these texts.

        With fewer texts than features (or equal texts), the last features are zero.

        Raises:
            ValueError: no text, or no feature, or more features than buckets.
        """
        if not texts or not 1 <= width <= buckets:
            raise ValueError(f"{len(texts)} texts and {width} features in {buckets} buckets: nothing to fit")
        counted = count(texts, buckets)
        df_B = np.bincount(counted.bucket_n, minlength=buckets)
        idf_B = (np.log((1 + len(texts)) / (1 + df_B)) + 1).astype(np.float32)
        return cls(idf_B, _leading(_weighed(counted, idf_B), buckets, width, seed))

    @classmethod
    def load(cls, path: Path) -> "TextEncoder":
        """Read a file of :meth:`save`.

        Raises:
            Misconfigured: it cannot be read, or is no encoder; names file and key.
        """
        arrays = read_arrays(path, "a text encoder")
        for key, axes in zip(_KEYS, (1, 2), strict=True):
            array = arrays.get(key)
            if array is None or array.ndim != axes or array.dtype != np.float32 or not array.size:
                raise Misconfigured(f"{path}: key {key!r} must be float32 with {axes} axes")
            if not np.isfinite(array).all() or len(array) != len(arrays["idf"]):
                raise Misconfigured(f"{path}: key {key!r} is not finite, or not as long as 'idf'")
        return cls(arrays["idf"], arrays["basis"])

    def save(self, path: Path) -> None:
        """Write it as npz; equal encoders give equal bytes."""
        write_npz(path, dict(zip(_KEYS, (self.idf_B, self.basis_BF), strict=True)))

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Features of texts, (E, F) float32, of length 1; zeros for an empty text.

        A row depends on its own text alone.
        """
        weighed = _weighed(count(texts, len(self.idf_B)), self.idf_B)
        x_EF = _product(weighed.row_n, weighed.bucket_n, weighed.count_n, self.basis_BF, len(texts))
        return _unit(x_EF)


def count(texts: Iterable[str], buckets: int = BUCKETS) -> Counted:
    """Count the n-grams of each text by bucket. Texts are NFKC and case-folded first."""
    points: list[NDArray[np.uint64]] = []
    rows: list[NDArray[np.int64]] = []
    total = 0
    for row, text in enumerate(texts):
        total += 1
        plain = " ".join(unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold().split())
        if plain:
            code = np.frombuffer(f" {plain} ".encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
            points += [code, np.array([_GAP])]
            rows.append(np.full(len(code) + 1, row))
    if not points:
        none_n = np.zeros(0, np.int64)
        return Counted(total, none_n, none_n, np.zeros(0, np.float32))
    point_n, row_n = np.concatenate(points), np.concatenate(rows)
    place_n = np.concatenate([_places(point_n, row_n, length, buckets) for length in LENGTHS])
    place_n, count_n = np.unique(place_n, return_counts=True)
    return Counted(total, *np.divmod(place_n, buckets), count_n.astype(np.float32))


def _places(
    point_n: NDArray[np.uint64], row_n: NDArray[np.int64], length: int, buckets: int
) -> NDArray[np.int64]:
    """Row times B plus bucket, of each n-gram of a length that lies in one text."""
    starts = len(point_n) - length + 1
    if starts <= 0:
        return np.zeros(0, np.int64)
    hash_n = np.full(starts, length, np.uint64)
    whole_n = np.ones(starts, np.bool_)
    for at in range(length):
        here_n = point_n[at : at + starts]
        hash_n = (hash_n ^ here_n) * _ODD  # unsigned arithmetic wraps, as a hash needs
        whole_n &= here_n != _GAP
    for (
        shift,
        factor,
    ) in _MIX:  # the last steps of splitmix64: every bit of the n-gram changes every bit of the hash
        hash_n = (hash_n ^ (hash_n >> shift)) * factor
    hash_n = (hash_n ^ (hash_n >> np.uint64(31)))[whole_n]
    return row_n[:starts][whole_n] * buckets + (hash_n % np.uint64(buckets)).astype(np.int64)


def _weighed(counted: Counted, idf_B: FloatArray) -> Counted:
    """TF-IDF with ``1 + log`` of the count, each text's row of length 1."""
    value_n = (1 + np.log(counted.count_n)) * idf_B[counted.bucket_n]
    square_E = np.bincount(counted.row_n, np.square(value_n, dtype=np.float64), counted.texts)
    unit_n = (value_n / np.sqrt(square_E)[counted.row_n]).astype(np.float32)
    return Counted(counted.texts, counted.row_n, counted.bucket_n, unit_n)


def _leading(x: Counted, buckets: int, width: int, seed: int) -> FloatArray:
    """The leading right singular vectors of a sparse (E, B), as columns of (B, F)."""
    columns = min(width + _OVERSAMPLING, buckets, x.texts)
    down = np.argsort(x.bucket_n, kind="stable")  # sorted by bucket: the transposed matrix
    turned = (x.bucket_n[down], x.row_n[down], x.count_n[down])
    y_EP = np.random.default_rng(seed).normal(size=(x.texts, columns)).astype(np.float32)
    for _ in range(_POWERS):
        q_BP = np.linalg.qr(_product(*turned, y_EP, buckets))[0]
        y_EP = np.linalg.qr(_product(x.row_n, x.bucket_n, x.count_n, q_BP, x.texts))[0]
    b_BP = _product(*turned, y_EP, buckets)
    left_BP, value_P, _ = np.linalg.svd(b_BP, full_matrices=False)
    left_BP[:, value_P <= value_P[0] * 1e-5] = 0  # from rounding, not from the texts
    strongest_P = np.abs(left_BP).argmax(axis=0)
    signs_P = np.where(left_BP[strongest_P, np.arange(columns)] < 0, -1, 1)  # else the sign is random
    basis_BF = np.zeros((buckets, width), np.float32)
    basis_BF[:, : min(columns, width)] = (left_BP * signs_P)[:, :width]
    return basis_BF


def _product(
    row_n: NDArray[np.int64],
    column_n: NDArray[np.int64],
    value_n: FloatArray,
    dense_XP: NDArray[Any],
    rows: int,
) -> FloatArray:
    """A sparse matrix, sorted by row, times a dense one: (rows, P) float32."""
    product_EP = np.zeros((rows, dense_XP.shape[1]), np.float32)
    ends_E = np.cumsum(np.bincount(row_n, minlength=rows))
    first = start = 0
    while start < len(row_n):
        last = max(first + 1, int(np.searchsorted(ends_E, start + _BLOCK, "right")))
        part = slice(start, int(ends_E[last - 1]))
        if part.stop > start:
            begins, which = np.unique(row_n[part], return_index=True)
            terms_nP = dense_XP[column_n[part]] * value_n[part, None]
            product_EP[begins] = np.add.reduceat(terms_nP, which, axis=0)
        first, start = last, part.stop
    return product_EP


def _unit(x_EF: FloatArray) -> FloatArray:
    length_E1 = np.sqrt(np.square(x_EF, dtype=np.float64).sum(axis=1, keepdims=True))
    return np.divide(x_EF, np.where(length_E1 > 0, length_E1, 1)).astype(np.float32)
