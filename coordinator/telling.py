"""Answers to devices: receipts and refusals, counted. A lost answer costs a delay: the device asks again."""

import asyncio
from collections import Counter

import structlog

from coordinator.links import Post
from coordinator.store import Store
from protocol.base import Wire
from protocol.errors import LichenError, Refused
from protocol.messages import Receipt
from protocol.topics import Kind
from runtime.clock import Clock

log = structlog.get_logger(__name__)


class Teller:
    """Sends receipts; ``accepted`` and ``refused`` count them (by reason) since the process started."""

    def __init__(self, post: Post, store: Store, task: str, clock: Clock) -> None:
        self._post = post
        self._store = store
        self._task = task
        self._clock = clock
        self.accepted = 0
        self.refused: Counter[str] = Counter()

    async def accept(self, device: str, round_: int, digest: str) -> None:
        """Tell a device that its update is in the journal and synced."""
        self.accepted += 1
        await self.say(
            device, Kind.RECEIPT, Receipt(task=self._task, round=round_, digest=digest, status="accepted")
        )

    async def refuse(self, device: str, round_: int, digest: str | None, refused: Refused) -> None:
        """Count a refusal; tell the device where it can know what is meant (by the digest it sent)."""
        self.refused[refused.reason.value] += 1
        log.warning("refused", device=device, reason=refused.reason.value, detail=refused.detail)
        wall = self._clock.wall()
        try:
            await asyncio.to_thread(
                self._store.count_refusal, device, refused.reason.value, refused.detail, wall
            )
        except LichenError as error:
            log.warning("not_counted", device=device, why=str(error))
        if digest is not None:
            receipt = Receipt(
                task=self._task,
                round=round_,
                digest=digest,
                status="refused",
                reason=refused.reason,
                detail=refused.detail[:500],
            )
            await self.say(device, Kind.RECEIPT, receipt)

    async def say(self, device: str, kind: Kind, message: Wire) -> None:
        """Send, or log that it could not be sent."""
        try:
            await self._post.to_device(device, kind, message)
        except LichenError as error:
            log.warning("not_told", device=device, topic=kind.value, why=str(error))
