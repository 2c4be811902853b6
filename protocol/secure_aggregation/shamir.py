"""Shamir's secret sharing of 32-byte secrets over a prime field. Pure.

Below the threshold, shares are uniformly distributed whatever the secret is (Shamir 1979). Numbers are
Python's; a device's two secrets for 64 neighbours take about a millisecond.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from protocol.errors import Reason, Refused

PRIME: Final = (1 << 256) + 297
"""The smallest prime above 2**256: every secret of 32 bytes is a number below it."""
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_COEFFICIENT_BYTES: Final = 48
"""Reduced modulo the prime, 48 random bytes are uniform but for 2**-127."""


def split(secret: bytes, holders: int, threshold: int, draw: Callable[[int], bytes]) -> tuple[bytes, ...]:
    """Shares for ``holders``, any ``threshold`` of which give the secret.

    Args:
        secret: 32 bytes.
        holders: number of shares.
        threshold: from 1 to ``holders``.
        draw: so many random bytes.

    Returns:
        Shares of 33 bytes; the n-th belongs to place n + 1.

    Raises:
        ValueError: a size is wrong (a bug).
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= holders:
        raise ValueError(f"secret of {len(secret)} bytes, threshold {threshold} of {holders}")
    coefficients = [int.from_bytes(draw(_COEFFICIENT_BYTES)) % PRIME for _ in range(threshold - 1)]
    constant = int.from_bytes(secret)
    shares = []
    for x in range(1, holders + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * x % PRIME
        shares.append(((value + constant) % PRIME).to_bytes(SHARE_BYTES))
    return tuple(shares)


def read_share(share: bytes, where: str) -> int:
    """The number of a share.

    Raises:
        Refused: it is none; the detail begins with ``where``.
    """
    value = int.from_bytes(share)
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise Refused(Reason.MALFORMED, f"{where}: {len(share)} bytes that are no share of a secret")
    return value


def weights(places: Sequence[int]) -> tuple[int, ...]:
    """Lagrange's coefficients at zero for these places, distinct and from 1; they serve many secrets."""
    found = []
    for one in places:
        above, below = 1, 1
        for other in places:
            if other != one:
                above = above * other % PRIME
                below = below * (other - one) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


def join(shares: Mapping[int, bytes], threshold: int, where: str) -> bytes:
    """The secret from shares by place.

    Args:
        shares: at least ``threshold``; more are compared with the result.
        threshold: of :func:`split`.
        where: whose secret, for errors.

    Raises:
        Refused: there are too few, one is malformed, or they are of different secrets.
    """
    if len(shares) < threshold:
        raise Refused(Reason.OUT_OF_BOUNDS, f"{where}: {len(shares)} shares, the threshold is {threshold}")
    numbers = {place: read_share(shares[place], where) for place in sorted(shares)}
    places = tuple(numbers)[:threshold]
    secret = _at_zero(places, numbers)
    if len(numbers) > threshold and _at_zero(tuple(numbers)[-threshold:], numbers) != secret:
        raise Refused(Reason.MALFORMED, f"{where}: the shares are of different secrets; one is forged")
    if secret >> (8 * SECRET_BYTES):
        raise Refused(Reason.MALFORMED, f"{where}: the shares give no secret; one is forged")
    return secret.to_bytes(SECRET_BYTES)


def _at_zero(places: tuple[int, ...], numbers: Mapping[int, int]) -> int:
    pairs = zip(weights(places), places, strict=True)
    return sum(weight * numbers[place] for weight, place in pairs) % PRIME
