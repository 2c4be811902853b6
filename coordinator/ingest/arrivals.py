"""What the leader does besides the work of ``serve``: it counts what other processes have accepted."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from coordinator.admission.quarantine import Quarantine
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.lease.keeper import LeaseKeeper
from coordinator.rounds.driver import RoundDriver
from protocol.errors import Transient
from runtime.clock import Clock

log = structlog.get_logger(__name__)

EVERY_S: Final = 0.25


def leader_services(
    lease: LeaseKeeper, driver: RoundDriver, roster: DeviceRegistry, quarantine: Quarantine, clock: Clock
) -> dict[str, Callable[[], Awaitable[None]]]:
    """The services of a leader besides those of every coordinator."""
    return {
        "lease": lease.run,
        "arrivals": partial(count_arrivals, driver, roster, clock),
        "standing": partial(quarantine.follow, clock),
    }


async def count_arrivals(driver: RoundDriver, roster: DeviceRegistry, clock: Clock) -> None:
    """Count accepted updates at intervals, for ever.

    Args:
        driver: the round machine.
        roster: notes who contributed.
        clock: of the pauses.
    """
    while True:
        await clock.sleep(EVERY_S)
        try:
            for device in await driver.count_outside():
                roster.contributed(device)
        except Transient as error:
            log.warning("arrivals_not_counted", why=str(error))
