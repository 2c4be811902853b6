"""Offers the open round to its whole cohort by one retained message, ``b/offer``.

The message is published when a round opens and when the offer changes, and repeated at growing intervals,
because a broker may lose it. When the round is over it is cleared.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.messaging.sender import Sender
from coordinator.privacy.account_store import AccountStore
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.rounds.driver import RoundDriver
from coordinator.storage.model_registry import ModelRegistry
from coordinator.trust.work_signer import WorkSigner
from coordinator.workers.encoder_models import EncoderModels
from protocol.cohort import MAX_MEMBERS, pack
from protocol.errors import LichenError
from protocol.messages import Offer
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.concurrency.signals import Signal

log = structlog.get_logger(__name__)

DEVICE_S: Final = 0.005
"""Seconds of ``answer_within_s`` for each selected device: 200 devices a second, which one coordinator can
serve."""
_LATER_ATTEMPTS: Final = 3
"""In later attempts offers are repeated at most after this many times ``every_s``: they list the devices that
delivered, and a device that is missing there makes its update again."""


@dataclass(eq=False, repr=False, kw_only=True)
class OfferAnnouncer:
    """The offers of one coordinator; one service.

    Args:
        post: sends to the fleet.
        driver: the state of the round.
        registry: knows the size of a manifest.
        encoder_models: that the offer names.
        signer: signs it.
        changes: set when the round was opened or closed.
        clock: the time.
        every_s: interval until the first repetition; each further one is twice as long.
        accounts: know the clip of a round that adapts.
    """

    post: Sender
    driver: RoundDriver
    registry: ModelRegistry
    encoder_models: EncoderModels
    signer: WorkSigner
    changes: Signal
    clock: Clock
    every_s: float
    accounts: AccountStore

    def __post_init__(self) -> None:
        self._published: object = None
        """What the broker holds: :func:`_content` of the last offer, or () after it was cleared."""
        self._again = True
        """Whether that is unknown, or its signature is old."""
        self._pause_s, self._again_at = self.every_s, 0.0
        self._members: tuple[object, str] = ((), "")
        self.sent = 0
        """Messages so far."""

    def publish_again(self) -> None:
        """Publish in any case: the broker may have lost the message, or the signing key has changed."""
        self._again = True
        self.changes.set()

    async def run(self) -> None:
        """Keep the retained message as the round is, for ever."""
        while True:
            await self.changes.wait(self.every_s, self.clock)
            try:
                await self.publish()
            except (LichenError, OSError) as error:  # the next pass tries it again
                log.info("not_offered", why=str(error))

    async def publish(self) -> None:
        """Publish the offer of the open round, or clear it, if that is due.

        Raises:
            Transient: the broker is gone, or the disk is full.
            Misconfigured: it cannot be signed.
        """
        again, self._again = self._again, False
        try:
            state = self.driver.state
            if state.phase is RoundPhase.COLLECTING:
                await self._offer(state, again=again)
            elif state.phase is RoundPhase.WAITING and state.invited:
                self._again = again  # between two attempts the last offer stays: updates still count
            elif again or self._published != ():
                await self.post.withdraw(Kind.OFFER)
                self._published, self.sent = (), self.sent + 1
        except BaseException:
            self._again = True
            raise

    async def _offer(self, state: RoundState, *, again: bool) -> None:
        offer = await asyncio.to_thread(self._made, state)
        content = _content(offer, state)
        same = not again and self._published == content
        if same and self.clock.now() < self._again_at:
            return
        await self.post.broadcast(Kind.OFFER, await asyncio.to_thread(self.signer.offer, offer))
        self._published, self.sent = content, self.sent + 1
        most_s = _LATER_ATTEMPTS * self.every_s if state.attempt > 1 else math.inf
        self._pause_s = min(most_s, 2 * self._pause_s) if same else self.every_s
        self._again_at = self.clock.now() + self._pause_s

    def _made(self, state: RoundState) -> Offer:
        driver, now = self.driver, self.driver.now()
        private = self.accounts.current(driver.task, state.version)
        return Offer(
            task=driver.task.name,
            round=state.round,
            attempt=state.attempt,
            base=state.manifest,
            base_size=self.registry.size(state.manifest),
            closes_in_s=max(0.0, (state.until or 0.0) - now),
            answer_within_s=max(0.0, state.since + self._window_s(state) - now),
            salt=state.salt,
            below=None if state.by_name else state.below,
            members=self._members_of(state) if state.by_name else None,
            delivered=_delivered(state),
            graphs=dict(self.encoder_models.offered()),
            clip=private.clip if private and private.adaptive_clip else None,
        )

    def _window_s(self, state: RoundState) -> float:
        rounds = self.driver.task.rounds
        asked = rounds.answer_within_s
        return min(rounds.deadline_s / 2, DEVICE_S * len(state.selected) if asked is None else asked)

    def _members_of(self, state: RoundState) -> str:
        """The list of those that this attempt selected; made once an attempt."""
        attempt = (state.round, state.attempt, state.manifest)
        if self._members[0] != attempt:
            self._members = attempt, pack(state.salt, state.selected.unsorted())
        return self._members[1]


def _delivered(state: RoundState) -> str | None:
    if state.attempt == 1 or len(state.delivered) > MAX_MEMBERS:
        return None
    return pack(state.salt, state.delivered.unsorted())


def _content(offer: Offer, state: RoundState) -> object:
    """What devices must hear of at once: all but durations, which count down, and who delivered."""
    shown = {"closes_in_s", "answer_within_s", "delivered"}
    return offer.model_dump_json(exclude=shown), state.until
