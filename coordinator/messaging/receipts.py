"""Answers to devices: receipts and refusals, counted. A lost answer costs a delay: the device asks again.

Nobody waits here for a broker: an answer is queued and ``SENDERS`` services publish it. Were a message's
handling to wait for the PUBACK of its answer, a broker that has many messages under way to us and sends no
PUBACK before some of them are acknowledged (rumqttd) would bring both sides to a halt. Rules of the queue: at
most ``PER_DEVICE`` answers wait for one device and ``MOST`` in all; what comes then is dropped and counted.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from coordinator.messaging.log_rate_limit import Voice, cut, more
from coordinator.messaging.sender import Post
from coordinator.storage.write_behind import Ledger
from protocol.base import Wire
from protocol.errors import LichenError, Refused
from protocol.messages import Receipt
from protocol.topics import Kind

log = structlog.get_logger(__name__)

SENDERS: Final = 4
PER_DEVICE: Final = 128
MOST: Final = 4096
_DETAIL: Final = 250
"""Characters of a refusal's words in the log."""


class Teller:
    """Sends receipts; ``accepted`` and ``refused`` count them (by reason) since the process started."""

    def __init__(
        self, post: Post, ledger: Ledger, task: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._post = post
        self._ledger = ledger
        self._task = task
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.dropped = 0
        self._queue: asyncio.Queue[tuple[str, Kind, Wire]] = asyncio.Queue(MOST)
        self._waiting: Counter[str] = Counter()
        self._voice = Voice(now)
        self.on_refusal: Callable[[str, Refused], str] = lambda *_: ""
        """Told every refusal of something that a device sent; answers what follows from it, in words."""

    def accept(self, device: str, round_: int, digest: str) -> None:
        """Tell a device that its update is in the journal and synced."""
        self.accepted += 1
        self.say(
            device, Kind.RECEIPT, Receipt(task=self._task, round=round_, digest=digest, status="accepted")
        )

    def refuse(
        self, device: str, round_: int, digest: str | None, refused: Refused, *, conduct: bool = True
    ) -> None:
        """Count a refusal; tell the device where it can know what is meant (by the digest it sent).

        Args:
            device: who sent it.
            round_: that it is about.
            digest: of what was sent; None: no device asks for an answer.
            refused: why.
            conduct: whether it may count as bad conduct.
        """
        self.refused[refused.reason.value] += 1
        unsaid = self._voice.unsaid(device)
        if unsaid is not None:
            detail = cut(refused.detail, _DETAIL)
            log.warning("refused", device=device, reason=refused.reason.value, detail=detail, **more(unsaid))
        self._ledger.refused(device, refused)
        follows = self.on_refusal(device, refused) if conduct else ""
        if digest is not None:
            receipt = Receipt(
                task=self._task,
                round=round_,
                digest=digest,
                status="refused",
                reason=refused.reason,
                detail=f"{refused.detail[:300]}; {follows}"[:500] if follows else refused.detail[:500],
            )
            self.say(device, Kind.RECEIPT, receipt)

    def say(self, device: str, kind: Kind, message: Wire) -> None:
        """Send soon; drop it where too much waits already."""
        if self._waiting[device] >= PER_DEVICE or self._queue.full():
            self.dropped += 1
            return
        self._waiting[device] += 1
        self._queue.put_nowait((device, kind, message))

    async def run(self) -> None:
        """Send what is queued, for ever."""
        while True:
            device, kind, message = await self._queue.get()
            try:
                await self._post.to_device(device, kind, message)
            except LichenError as error:
                if (unsaid := self._voice.unsaid(device)) is not None:
                    log.warning("not_told", device=device, topic=kind.value, why=str(error), **more(unsaid))
            finally:
                self._waiting[device] -= 1
                if not self._waiting[device]:
                    del self._waiting[device]
                self._queue.task_done()

    async def drained(self) -> None:
        """Wait until all that was queued is sent, or could not be."""
        await self._queue.join()
