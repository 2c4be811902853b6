"""How much the coordinator remembers of devices: in numbers, in bytes, and what made-up names may cost."""

from dataclasses import dataclass
from typing import Final

_MIB: Final = 1024 * 1024
MOST_ENROLLED: Final = 100_000
MOST_OPEN: Final = 4_000
"""Without an authority anybody makes up names, so there is room for fewer."""
BYTES_ENROLLED: Final = 64 * _MIB
BYTES_OPEN: Final = 16 * _MIB
"""Of the states of all devices together, as JSON."""
REPLACED_BURST: Final = 50.0
REPLACED_A_SECOND: Final = 1.0
"""In a full roster of an open fleet, so many names give way to new ones."""
OPEN_DISK_BYTES: Final = 96 * _MIB
"""What whoever makes up names in an open fleet can fill of the disk, however long: states, refusals and
records of conduct in the database, its write-ahead log, and the backup. The history has a bound of its own,
``history_bytes``."""
OPEN_LOG_BYTES_A_DAY: Final = 64 * _MIB
"""What it can add to the log in a day."""


@dataclass(frozen=True, slots=True)
class RosterBounds:
    """Of the roster. ``replaces``: where it is full, names that never contributed give way to new ones."""

    most: int = MOST_ENROLLED
    most_bytes: int = BYTES_ENROLLED
    replaces: bool = False

    def __str__(self) -> str:
        return f"{self.most} devices and {self.most_bytes} bytes of their states"


def roster_bounds(*, enrolled: bool, most: int = 0) -> RosterBounds:
    """Of a fleet with or without an authority; ``most`` is the operator's own number of devices, 0: none."""
    if enrolled:
        return RosterBounds(most or MOST_ENROLLED, max(BYTES_ENROLLED, most * 1024))
    return RosterBounds(most or MOST_OPEN, max(BYTES_OPEN, most * 1024), replaces=True)


class Room:
    """What the devices of a roster take."""

    def __init__(self, bounds: RosterBounds) -> None:
        self.bounds = bounds
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    def fits(self, device: str, size: int) -> bool:
        """Whether a device's state of so many bytes has room; one that does not grow always has."""
        known = self._sizes.get(device)
        if known is None and len(self._sizes) >= self.bounds.most:
            return False
        more = size - (known or 0)
        return more <= 0 or self._bytes + more <= self.bounds.most_bytes

    def put(self, device: str, size: int) -> None:
        """Count a device's state."""
        self._bytes += size - self._sizes.get(device, 0)
        self._sizes[device] = size

    def drop(self, device: str) -> None:
        """Count it no more."""
        self._bytes -= self._sizes.pop(device, 0)
