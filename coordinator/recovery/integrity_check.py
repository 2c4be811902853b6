"""Check, once after the start, whether the frames of accepted updates are unchanged.

Otherwise a frame that was damaged while its round was open would be found at the fold, when its device may be
gone; now the device is asked again at once.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.aggregation.fold import UnusableUpdates
from coordinator.round_machine.events import RoundPhase
from coordinator.rounds.driver import RoundDriver
from coordinator.rounds.worker import RoundWorker
from coordinator.storage.update_journal import AcceptedUpdate, Journal
from protocol.errors import Reason, Refused, Transient
from runtime.clock import Clock
from runtime.mqtt.running_link import MessagePublisher

log = structlog.get_logger(__name__)

_OPEN: Final = (RoundPhase.WAITING, RoundPhase.COLLECTING, RoundPhase.AGGREGATING)
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 10.0
_RETRY_S: Final = 5.0


@dataclass(eq=False, repr=False)
class IntegrityCheck:
    """A service that ends after one check."""

    driver: RoundDriver
    journal: Journal
    round_worker: RoundWorker
    link: MessagePublisher
    clock: Clock

    def __post_init__(self) -> None:
        self.looked_at = 0
        """Frames."""

    async def run(self) -> None:
        """Check the open round's frames, and report the unusable ones as refused."""
        state = self.driver.state
        if state.phase not in _OPEN or not state.delivered:
            return
        try:
            lost = await asyncio.to_thread(self._unsound, state.round, tuple(state.delivered))
            self.looked_at = len(state.delivered)
            log.info("frames_checked", round=state.round, count=self.looked_at, unsound=len(lost))
            while lost:
                await self._connected()  # the devices are told now; one that misses it gets the offer again
                # The fold may have found them, too, and their devices may have sent them again.
                lost = await asyncio.to_thread(self._unsound, state.round, tuple(lost))
                if await self._reported(state.round, lost):
                    return
        except (OSError, Transient) as error:  # nothing was found; the fold checks again
            log.warning("frames_not_checked", round=state.round, why=str(error))

    async def _reported(self, round_: int, lost: dict[str, Refused]) -> bool:
        try:
            await self.round_worker.lose(round_, UnusableUpdates(lost))
        except Transient as error:  # a full disk; the fold finds them, too
            log.warning("not_journaled", why=str(error))
            await self.clock.sleep(_RETRY_S)
            return False
        return True

    def _unsound(self, round_: int, devices: tuple[str, ...]) -> dict[str, Refused]:
        entries = self.journal.entries(round_, devices)
        gone = set(devices) - {entry.device for entry in entries}
        lost = {device: Refused(Reason.WRONG_DIGEST, "the journal has no such update") for device in gone}
        return lost | {entry.device: why for entry in entries if (why := _why_unsound(entry)) is not None}

    async def _connected(self) -> None:
        deadline = self.clock.now() + _PATIENCE_S
        while not self.link.connected and self.clock.now() < deadline:
            await self.clock.sleep(_POLL_S)


def _why_unsound(entry: AcceptedUpdate) -> Refused | None:
    try:
        entry.verified()
    except Refused as refused:
        return refused
    return None
