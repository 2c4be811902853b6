"""Problems with signatures, for ``lichen coordinator status --why``."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Final

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.trust.repository import AHEAD_S, ahead_words
from coordinator.trust.signer import repository_of
from protocol.errors import LichenError
from runtime.text import first_few, one_line
from runtime.waits import Wait

MAX_LISTED_DEVICES: Final = 5


def waits(
    settings: CoordinatorSettings, now: float, roster: DeviceRegistry, barred: Collection[str]
) -> list[Wait]:
    """Metadata signed later than now, and devices that do not act on the newest messages.

    Args:
        settings: whose ``state_dir/trust`` is read.
        now: Unix seconds.
        roster: the devices.
        barred: devices that are not admitted.
    """
    return [*_ahead(settings, now), *_distrust(roster, barred)]


def _ahead(settings: CoordinatorSettings, now: float) -> Iterator[Wait]:
    with contextlib.suppress(LichenError):  # lichen coordinator trust status reports the damage
        repository = repository_of(settings)
        ahead_s = repository.ahead_s(now) if repository.exists else 0.0
        if ahead_s > AHEAD_S:
            yield Wait("signatures", ahead_words(ahead_s), None, now + ahead_s, "the clock has caught up")


def _distrust(roster: DeviceRegistry, barred: Collection[str]) -> Iterator[Wait]:
    found = []
    for name in roster.online():
        device = roster.get(name)
        if name not in barred and device is not None and device.state.distrusts is not None:
            found.append(f"{name} ({one_line(device.state.distrusts)})")
    if found:
        words = f"devices that do not act on signed messages: {first_few(found, MAX_LISTED_DEVICES)}"
        yield Wait("trust", words, None, None, "until a task or an offer comes that they can verify")
