"""Seeds that follow from what they are for."""

import hashlib


def derive_seed(*parts: object) -> int:
    """A seed of 31 bits that is the same for the same parts."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big") >> 1
