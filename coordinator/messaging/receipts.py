"""Answers to devices: receipts and refusals, counted. A lost answer costs a delay: the device asks again.

Nobody waits here for a broker: an answer is queued and ``SENDERS`` services publish it. Were a message's
handling to wait for the PUBACK of its answer, a broker that has many messages under way to us and sends no
PUBACK before some of them are acknowledged (rumqttd) would bring both sides to a halt. Rules of the queue: at
most ``PER_DEVICE`` answers wait for one device and ``MOST`` in all; what comes then is dropped and counted.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from coordinator.admission.quarantine import Quarantine
from coordinator.messaging.log_rate_limit import LogRateLimiter, cut, more
from coordinator.messaging.sender import Sender
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.base import Wire
from protocol.errors import LichenError, Refused
from protocol.messages import Receipt
from protocol.topics import Kind
from runtime.metrics import MetricFamily, counter

log = structlog.get_logger(__name__)

SENDERS: Final = 4
PER_DEVICE: Final = 128
MOST: Final = 4096
_DETAIL: Final = 250
"""Characters of a refusal's words in the log."""
Answer = tuple[str, Kind, Wire]
"""For which device, on which topic, and the message."""


class AnswerQueue(asyncio.Queue[Answer]):
    """Answers that wait to be sent, at most ``MOST``."""

    def __init__(self) -> None:
        super().__init__(MOST)


class ReceiptSender:
    """Sends receipts; ``accepted`` and ``refused`` count them (by reason) since the process started.

    Args:
        post: to the devices.
        ledger: counts refusals on disk.
        quarantine: is told of every refusal of something that a device sent.
        task: its name.
        queue: where answers wait.
        now: monotonic seconds.
    """

    def __init__(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
        self,
        post: Sender,
        ledger: WriteBehindBuffer,
        quarantine: Quarantine,
        task: str,
        queue: AnswerQueue,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._ledger = ledger
        self._quarantine = quarantine
        self._task = task
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.dropped = 0
        self._queue = queue
        self._waiting: Counter[str] = Counter()
        self._voice = LogRateLimiter(now)

    def send_accepted(self, device: str, round_: int, digest: str) -> None:
        """Tell a device that its update is in the journal and synced."""
        self.accepted += 1
        self.enqueue(
            device, Kind.RECEIPT, Receipt(task=self._task, round=round_, digest=digest, status="accepted")
        )

    def send_refused(
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
        follows = self._quarantine.refused(device, refused) if conduct else ""
        if digest is not None:
            receipt = Receipt(
                task=self._task,
                round=round_,
                digest=digest,
                status="refused",
                reason=refused.reason,
                detail=f"{refused.detail[:300]}; {follows}"[:500] if follows else refused.detail[:500],
            )
            self.enqueue(device, Kind.RECEIPT, receipt)

    def enqueue(self, device: str, kind: Kind, message: Wire) -> None:
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

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """To be run: several senders, so that one slow answer delays few."""
        return {f"teller-{n}": self.run for n in range(SENDERS)}

    def metrics(self) -> Iterable[MetricFamily]:
        """What was accepted and refused."""
        yield counter("lichen_updates_accepted", "Updates accepted since the start", self.accepted)
        refused = [((reason,), float(count)) for reason, count in sorted(self.refused.items())]
        yield MetricFamily("lichen_refused", "Refusals since the start", "counter", refused, ("reason",))
