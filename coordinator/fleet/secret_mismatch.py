"""Fleet secrets that differ: found by the prints that devices with a knowledge graph report.

Under another secret the same entity has another key, so such devices share nothing: rounds go on, and each
part of the fleet learns alone. Devices that tell no print (an older release, no knowledge graph) are not
looked at.
"""

from collections.abc import Collection, Mapping
from typing import Final

import structlog

from coordinator.fleet.device_registry import DeviceRegistry
from runtime.text import first_few

log = structlog.get_logger(__name__)

MAX_NAMES: Final = 3
"""Devices of one secret that are named."""
_PRINTS: Final = 4
"""Secrets that are told apart in words."""
_QUIET_SHARE: Final = 8
"""Of so many devices that were named, one more is not worth a line of the log."""
_HOW: Final = (
    "give all of them one (lichen agent enroll --replace --fleet-secret FILE with a new invite; "
    "lichen agent secret FILE shows a file's print)"
)


def group_by_fingerprint(prints: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """The prints, the most common first (then by print), each with its devices by name.

    Args:
        prints: of devices, by device.
    """
    found: dict[str, list[str]] = {}
    for device in sorted(prints):
        found.setdefault(prints[device], []).append(device)
    ordered = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    return [(shown, tuple(devices)) for shown, devices in ordered]


def mismatch_warning(prints: Mapping[str, str]) -> str:
    """That secrets differ, on which devices, and what to do, in words; empty where there is one or none.

    Of the secret that most have, devices are named only where no more have it than another.
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
    """Warns in the log when devices come with another secret than most; of each device and secret once.

    Where many have been named, the next warning waits until there are some more: it names a few anyhow, and
    ``status`` counts all.

    Args:
        roster: what is known of devices.
    """

    def __init__(self, roster: DeviceRegistry) -> None:
        self._roster = roster
        self._prints = roster.secrets()
        self._having: dict[str, set[str]] = {}
        for device, shown in self._prints.items():
            self._having.setdefault(shown, set()).add(device)
        self._told: dict[str, str] = {}
        """Devices that were among those that differ, also where they have left since, each with its print."""
        self._warned = False
        self._look()

    def heard(self, device: str) -> None:
        """A device has said its state, and the roster has it; no work where its print is as it was."""
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
