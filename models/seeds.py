"""Seeds derived from their purpose; values are stable across releases."""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed of a generator, from a seed and its use (device, round, purpose)."""
    return _first_bytes("\0".join(map(str, parts)), 8)


def derive_round_seed(*parts: int | str) -> int:
    """A 31-bit seed of a round: for a device's offer, the selection or the coordinator's training."""
    return _first_bytes("/".join(map(str, parts)), 4)


def _first_bytes(text: str, count: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:count], "big") >> 1
