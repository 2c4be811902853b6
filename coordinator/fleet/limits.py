"""Limits of what the coordinator stores of devices: in numbers, in bytes, and for invented names."""

from dataclasses import dataclass
from typing import Final

_MIB: Final = 1024 * 1024
MOST_ENROLLED: Final = 100_000
MOST_OPEN: Final = 4_000
"""Without an authority anybody can invent names, so there is room for fewer."""
BYTES_ENROLLED: Final = 64 * _MIB
BYTES_OPEN: Final = 16 * _MIB
"""Bytes of the states of all devices together, as JSON."""
REPLACED_BURST: Final = 50.0
REPLACED_A_SECOND: Final = 1.0
"""In a full registry of an open fleet, names replaced by new ones in a second."""
OPEN_DISK_BYTES: Final = 96 * _MIB
"""Bytes of disk that invented names in an open fleet can fill, however long: states, refusals and offence
records in the database, its write-ahead log, and the backup. The history has a limit of its own,
``history_bytes``."""
OPEN_LOG_BYTES_A_DAY: Final = 64 * _MIB
"""Bytes that they can add to the log in a day."""


@dataclass(frozen=True, slots=True)
class RosterBounds:
    """Limits of the registry. ``replaces``: if it is full, new names replace names that never contributed."""

    most: int = MOST_ENROLLED
    most_bytes: int = BYTES_ENROLLED
    replaces: bool = False

    def __str__(self) -> str:
        return f"{self.most} devices and {self.most_bytes} bytes of their states"


def roster_bounds(*, enrolled: bool, most: int = 0) -> RosterBounds:
    """Limits of a fleet with or without an authority; ``most``: the operator's number of devices, 0: none."""
    if enrolled:
        return RosterBounds(most or MOST_ENROLLED, max(BYTES_ENROLLED, most * 1024))
    return RosterBounds(most or MOST_OPEN, max(BYTES_OPEN, most * 1024), replaces=True)


class Room:
    """The bytes that the devices of a registry take."""

    def __init__(self, bounds: RosterBounds) -> None:
        self.bounds = bounds
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    def fits(self, device: str, size: int) -> bool:
        """Whether a state of this size has room; one that does not grow always has."""
        known = self._sizes.get(device)
        if known is None and len(self._sizes) >= self.bounds.most:
            return False
        more = size - (known or 0)
        return more <= 0 or self._bytes + more <= self.bounds.most_bytes

    def put(self, device: str, size: int) -> None:
        """Add a device's state."""
        self._bytes += size - self._sizes.get(device, 0)
        self._sizes[device] = size

    def drop(self, device: str) -> None:
        """Subtract it."""
        self._bytes -= self._sizes.pop(device, 0)
