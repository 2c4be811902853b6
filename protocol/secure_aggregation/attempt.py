"""The attempt of a round that keys, masks and shares belong to. Pure."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final

_DOMAIN: Final = b"lichen secure aggregation v1\n"


@dataclass(frozen=True)
class Attempt:
    """What tells one attempt from every other; it is part of all keys, signatures and encrypted shares.

    Attributes:
        fleet: the namespace of the task's topics.
        task: its name.
        round: its number.
        attempt: of that round, from 1.
        base: digest of the manifest of the version that devices learn from.
        salt: of the offer, hexadecimal.
    """

    fleet: str
    task: str
    round: int
    attempt: int
    base: str
    salt: str

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that differ for any other attempt."""
        return hashlib.sha256(_DOMAIN + json.dumps(asdict(self), sort_keys=True).encode()).digest()

    @property
    def words(self) -> str:
        """For messages."""
        return f"task {self.task!r}, round {self.round}, attempt {self.attempt}"
