"""Different fleet secrets, found by the fingerprints that devices with a knowledge graph report.

Under another secret the same entity has another key, so such devices share nothing: rounds go on, and each
part of the fleet learns alone. Devices without a fingerprint (an older release, no knowledge graph) are
ignored.
"""

from collections.abc import Collection, Mapping
from typing import Final

import structlog

from coordinator.fleet.device_registry import DeviceRegistry
from runtime.text import first_few

log = structlog.get_logger(__name__)

MAX_NAMES: Final = 3
"""Devices of one secret named in a message."""
_PRINTS: Final = 4
"""Secrets listed in a message."""
_QUIET_SHARE: Final = 8
"""After so many named devices, one more is not worth a log line."""
_HOW: Final = (
    "give all of them one (lichen agent enroll --replace --fleet-secret FILE with a new invite; "
    "lichen agent secret FILE shows a file's print)"
)


def group_by_fingerprint(prints: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Devices by fingerprint, the most common first (then by fingerprint), each list sorted.

    Args:
        prints: fingerprint by device.
    """
    found: dict[str, list[str]] = {}
    for device in sorted(prints):
        found.setdefault(prints[device], []).append(device)
    ordered = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    return [(shown, tuple(devices)) for shown, devices in ordered]


def mismatch_warning(prints: Mapping[str, str]) -> str:
    """Message: secrets differ, on which devices, and what to do; empty if there is at most one.

    Devices with the most common secret are named only if another secret is as common.
    """
    groups = group_by_fingerprint(prints)
    if len(groups) < 2:  # noqa: PLR2004 - one secret, or none
        return ""
    (most, here), *others = groups
    first = first_few(here, MAX_NAMES) if len(here) == len(others[0][1]) else f"{len(here)} others"
    parts = [
        f"{first_few(devices, MAX_NAMES)} {_have(devices)} {shown}" for shown, devices in others[:_PRINTS]
    ]
    more = f"; and {len(others) - _PRINTS} secrets more" if len(others) > _PRINTS else ""
    return (
        "devices have different fleet secrets and learn nothing from each other: "
        f"{'; '.join(parts)}{more}; {first} {_have(here)} {most}; {_HOW}"
    )


def _have(devices: Collection[str]) -> str:
    return "has" if len(devices) == 1 else "have"


class SecretMismatchMonitor:
    """Logs a warning for devices whose secret differs from most; once for each device and secret.

    After many named devices the next warning waits for several more: it names only a few, and ``status``
    counts all.

    Args:
        roster: the registry.
    """

    def __init__(self, roster: DeviceRegistry) -> None:
        self._roster = roster
        self._prints = roster.secrets()
        self._having: dict[str, set[str]] = {}
        for device, shown in self._prints.items():
            self._having.setdefault(shown, set()).add(device)
        self._told: dict[str, str] = {}
        """Devices that differed, also those that have left since, each with its fingerprint."""
        self._warned = False
        self._look()

    def heard(self, device: str) -> None:
        """Check a registered device's state; no work if its fingerprint is unchanged."""
        known = self._roster.get(device)
        shown = known.state.fleet_secret if known is not None and known.online else None
        before = self._prints.pop(device, None)
        if shown is not None:
            self._prints[device] = shown
        if before == shown:
            return
        if shown is not None and self._told.get(device, shown) != shown:
            del self._told[device]
        if before is not None:
            self._having[before].discard(device)
            if not self._having[before]:
                del self._having[before]
        if shown is not None:
            self._having.setdefault(shown, set()).add(device)
        self._look()

    def _look(self) -> None:
        having, told = self._having, self._told
        if len(having) < 2:  # noqa: PLR2004 - one secret, or none
            if self._warned and having and set(told.values()) <= having.keys():
                log.info("fleet_secrets_agree", devices=len(self._prints))
                self._warned = False
                told.clear()
            return
        most = min(having, key=lambda shown: (-len(having[shown]), shown))
        others = ((device, shown) for shown in having if shown != most for device in having[shown])
        fresh = {device: shown for device, shown in others if device not in told}
        if len(fresh) > len(told) // _QUIET_SHARE:
            log.warning("fleet_secrets_differ", why=mismatch_warning(self._prints))
            told |= fresh
            self._warned = True
