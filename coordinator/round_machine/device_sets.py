"""Sets of devices as sorted tuples: look-up and insertion are cheap in a large fleet, too. Pure."""

from bisect import bisect_left


def joined(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """The devices of some groups, sorted."""
    return tuple(sorted({d for group in groups for d in group}))


def holds(devices: tuple[str, ...], device: str) -> bool:
    """Whether a sorted tuple contains a device."""
    at = bisect_left(devices, device)
    return at < len(devices) and devices[at] == device


def joined_by(devices: tuple[str, ...], device: str) -> tuple[str, ...]:
    """The sorted tuple with one more device."""
    at = bisect_left(devices, device)
    return devices if holds(devices, device) else (*devices[:at], device, *devices[at:])
