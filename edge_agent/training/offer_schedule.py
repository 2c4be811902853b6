"""The round that is offered to the fleet: whether this device is asked, when it begins, and until when.

One message asks the whole cohort, so each device begins at its own moment (``protocol.cohort.moment``). The
offer then goes to the learner, and again every ``REPEAT_S`` while it stands, because a training may have
failed. It stands until the coordinator withdraws or replaces it, or its time is over.
"""

from dataclasses import dataclass
from typing import Final

import structlog

from edge_agent.ports import TaskLink
from edge_agent.training.learner import Learner
from protocol.cohort import moment
from protocol.messages import Offer
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.waits import StatusText

_log = structlog.get_logger(__name__)
REPEAT_S: Final = 5.0
RETURN_S: Final = 10.0
"""An offer that comes within this time after a connect may be an old one, which the broker retained: the
device begins within this time, whatever the offer says."""


@dataclass
class _StandingOffer:
    """``due``: when it goes to the learner next; ``closes``: until when. Both by the clock's ``now``."""

    offer: Offer
    due: float
    closes: float

    @property
    def key(self) -> tuple[object, ...]:
        """Two offers with the same key ask for the same work at the same moment."""
        return _key(self.offer)


class OfferSchedule:
    """One service.

    Args:
        device: this device's name.
        learner: gets the offers that this device is asked by.
        link: knows since when the broker is connected.
        clock: paces it.
        learning: the learner's status.
    """

    def __init__(
        self, device: str, learner: Learner, link: TaskLink, clock: Clock, learning: StatusText
    ) -> None:
        self._device = device
        self._learner = learner
        self._link = link
        self._clock = clock
        self._learning = learning
        self._standing: _StandingOffer | None = None
        self._news = Signal()

    def asks_us(self, offer: Offer) -> bool:
        """Whether this device is in the cohort; if not, an offer that stands ends.

        Raises:
            Refused: the offer's lists cannot be read.
        """
        offer.has_lost(self._device)
        if offer.asks(self._device):
            return True
        self._standing = None
        if self._learning.until is None:
            self._learning.say(f"not selected in round {offer.round}; waiting for the next offer")
        return False

    def take(self, offer: Offer) -> None:
        """Follow an offer that asks this device, at its moment; a repeated one keeps its moment."""
        now, before = self._clock.now(), self._standing
        if before is not None and before.key == _key(offer):
            due = before.due
        else:
            delay = self._delay(offer)
            due = now + delay
            if delay > 1.0 and self._learning.until is None:
                self._learning.say(f"selected in round {offer.round}; begins at its moment", delay)
        self._standing = _StandingOffer(offer, due, now + offer.closes_in_s)
        self._news.set()

    def _delay(self, offer: Offer) -> float:
        """Seconds from now until this device begins."""
        within = min(offer.answer_within_s, offer.closes_in_s)
        if not self._link.connected or self._clock.wall() - self._link.since < RETURN_S:
            within = min(within, RETURN_S)
        return within * moment(offer.salt, self._device)

    def end(self) -> None:
        """The coordinator has withdrawn the offer: the round is over, and no update of it counts."""
        if self._standing is not None:
            _log.info("offer_withdrawn", round=self._standing.offer.round)
        self._standing = None
        self._learner.stop()

    async def run(self) -> None:
        """Hand the standing offer to the learner when it is due, for ever."""
        while True:
            standing = self._standing
            pause = None if standing is None else max(0.0, standing.due - self._clock.now())
            if pause != 0.0:
                await self._news.wait(pause, self._clock)
            if standing is None or standing is not self._standing or self._clock.now() < standing.due:
                continue
            self._learner.offer(standing.offer)
            standing.due = self._clock.now() + REPEAT_S
            if standing.due > standing.closes:
                self._standing = None


def _key(offer: Offer) -> tuple[object, ...]:
    return offer.task, offer.round, offer.attempt, offer.base, offer.salt
