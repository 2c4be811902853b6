"""Offers the open round to missing devices: several at a time, so one slow answer delays few."""

import asyncio
from typing import Final

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.messaging.sender import Sender
from coordinator.round_machine.events import RoundPhase
from coordinator.rounds.driver import RoundDriver
from coordinator.storage.model_registry import ModelRegistry
from coordinator.trust.work_signer import WorkSigner
from coordinator.workers.encoder_models import EncoderModels
from models.seeds import derive_round_seed
from protocol.messages import Offer
from protocol.topics import Kind

AT_ONCE: Final = 32
"""Concurrent offers: one at a time, 10,000 of them would take longer than a round."""


class Offering:
    """The offers of one coordinator."""

    def __init__(
        self,
        post: Sender,
        roster: DeviceRegistry,
        registry: ModelRegistry,
        encoder_models: EncoderModels,
        signer: WorkSigner,
    ) -> None:
        self._post = post
        self._roster = roster
        self._registry = registry
        self._encoder_models = encoder_models
        self._signer = signer

    async def offer_round(self, driver: RoundDriver, only: set[str] | None) -> None:
        """Offer the open round to online devices that have not delivered; ``only``: to those among them.

        Raises:
            Transient: the broker is gone, or the disk is full; the others of the same group got the offer.
            Misconfigured: it cannot be signed.
        """
        asked = driver.state.missing() if only is None else sorted(only)
        for start in range(0, len(asked), AT_ONCE):
            group = asked[start : start + AT_ONCE]
            state = driver.state  # the state may change during the publishes
            if state.phase is not RoundPhase.COLLECTING:
                return
            here = [name for name in group if state.lacks(name) and self._is_here(name)]
            if here:
                await self._offer(driver, here)

    def _is_here(self, device: str) -> bool:
        known = self._roster.get(device)
        return known is not None and known.online

    async def _offer(self, driver: RoundDriver, devices: list[str]) -> None:
        offers, encoder_models = (
            {name: self._made(driver, name) for name in devices},
            self._encoder_models.offered(),
        )
        any_of_them = offers[devices[0]]  # one signature for all devices
        signed = await asyncio.to_thread(self._signer.offer, any_of_them, encoder_models)
        done = await asyncio.gather(
            *(
                self._post.to_device(name, Kind.OFFER, offer.model_copy(update={"signed": signed}))
                for name, offer in offers.items()
            ),
            return_exceptions=True,  # all have ended before one is raised
        )
        for error in done:
            if error is not None:
                raise error

    def _made(self, driver: RoundDriver, device: str) -> Offer:
        state = driver.state
        return Offer(
            task=driver.task.name,
            round=state.round,
            base=state.manifest,
            base_size=self._registry.size(state.manifest),
            closes_in_s=max(0.0, (state.until or 0.0) - driver.now()),
            seed=derive_round_seed(driver.task.seed, state.round, device),
            graphs=dict(self._encoder_models.offered_to(device)),
        )
