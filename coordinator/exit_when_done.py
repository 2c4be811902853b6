"""The end of a coordinator with ``exit_when_done``: after the last round and its downloads."""

from typing import Final

import structlog

from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.messaging.blob_server import BlobServer
from coordinator.rollout.recorder import RolloutRecorder
from coordinator.rounds.announcer import Announcer
from coordinator.rounds.driver import RoundDriver
from runtime.clock import Clock
from runtime.process.daemon import Finished

log = structlog.get_logger(__name__)

_FINAL_WAIT_S: Final = 15.0
_LINGER_TIMES: Final = 20
_POLL_S: Final = 0.5


async def exit_when_done(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
    driver: RoundDriver,
    announcer: Announcer,
    delivery: BundleDelivery,
    blobs: BlobServer,
    rollouts: RolloutRecorder | None,
    linger_s: float,
    clock: Clock,
) -> None:
    """After the last round: announce the end, let devices pull the last bundles, and end with status 0.

    An active rollout is awaited; a paused one goes on after the next start.

    Args:
        driver: knows when the rounds are over.
        announcer: announces the end.
        delivery: which bundles devices should run.
        blobs: serves the bundles.
        rollouts: whether one is active; None: there are none.
        linger_s: end when no device has asked for a blob for this long.
        clock: the time.

    Raises:
        Finished: everything is done.
    """
    await driver.finished.wait()
    while rollouts is not None and rollouts.busy:
        await clock.sleep(_POLL_S)
    deadline = clock.now() + _FINAL_WAIT_S
    while not (await announcer.publish_round() and await delivery.announce()):
        if clock.now() > deadline:
            log.warning("end_not_announced", waited_s=_FINAL_WAIT_S)
            break
        await clock.sleep(_POLL_S)
    await _linger(blobs, linger_s, clock)
    raise Finished("all rounds are over")


async def _linger(blobs: BlobServer, linger_s: float, clock: Clock) -> None:
    start = clock.now()
    while clock.now() - max(start, blobs.asked_at) < linger_s:
        if clock.now() - start > _LINGER_TIMES * linger_s:
            return
        await clock.sleep(min(0.2, linger_s))
