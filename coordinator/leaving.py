"""The end of a coordinator that is to end (``exit_when_done``): after the last round, and not too early."""

from typing import TYPE_CHECKING, Final

import structlog

from runtime.process.daemon import Finished

if TYPE_CHECKING:
    from coordinator.app import Coordinator

log = structlog.get_logger(__name__)

_FINAL_WAIT_S: Final = 15.0
_LINGER_TIMES: Final = 20
_LOOK_S: Final = 0.5


async def leave_when_done(app: "Coordinator") -> None:
    """After the last round: say so, let the fleet pull the last bundles, and end with status 0.

    A rollout that goes on by itself is waited for; one that is paused goes on after the next start.

    Raises:
        Finished: that is done.
    """
    await app.driver.finished.wait()
    if not app.settings.exit_when_done:
        return
    while app.deployed.busy:
        await app.clock.sleep(_LOOK_S)
    deadline = app.clock.now() + _FINAL_WAIT_S
    while not (await app.announcer.say_round() and await app.deployment.announce()):
        if app.clock.now() > deadline:
            log.warning("the end could not be announced", waited_s=_FINAL_WAIT_S)
            break
        await app.clock.sleep(0.5)
    await _linger(app)
    raise Finished("all rounds are over")


async def _linger(app: "Coordinator") -> None:
    linger, start = app.settings.exit_linger_s, app.clock.now()
    while app.clock.now() - max(start, app.server.asked_at) < linger:
        if app.clock.now() - start > _LINGER_TIMES * linger:
            return
        await app.clock.sleep(min(0.2, linger))
