"""Receipts and refusals to devices, counted. A lost answer costs a delay: the device asks again.

No handler waits for the broker: an answer is queued and ``SENDERS`` services publish it. If handlers waited
for the PUBACK of their answer, a broker with many messages under way to us that sends no PUBACK before some
of them are acknowledged (rumqttd) would bring both sides to a halt. Limits: at most ``PER_DEVICE`` answers
wait for one device and ``MOST_BYTES`` in all, which is room for the receipts of a whole fleet; further ones
are dropped and counted.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.admission.quarantine import Quarantine
from coordinator.messaging.log_rate_limit import LogRateLimiter, cut, more
from coordinator.messaging.sender import Sender
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.base import Wire
from protocol.errors import LichenError, Refused
from protocol.messages import Command, Receipt
from protocol.topics import Kind
from runtime.metrics import MetricFamily, counter

log = structlog.get_logger(__name__)

SENDERS: Final = 16
PER_DEVICE: Final = 128
MOST_BYTES: Final = 32 * 1024 * 1024
_ANSWER_BYTES: Final = 512
"""Memory of one answer without its detail."""
_DETAIL: Final = 250
"""Characters of a refusal's detail in the log."""
Answer = tuple[str, Kind, Wire]
"""The device, the topic, and the message."""


class AnswerQueue(asyncio.Queue[Answer]):
    """Answers that wait to be sent; :class:`ReceiptSender` bounds them."""


@dataclass(eq=False, repr=False)
class ReceiptSender:
    """Sends receipts; ``accepted`` and ``refused`` count them (by reason) since the process started.

    Args:
        post: sends to devices.
        ledger: counts refusals on disk.
        quarantine: records every refusal of a device's content.
        task: its name.
        queue: the waiting answers.
        now: monotonic seconds.
    """

    post: Sender
    ledger: WriteBehindBuffer
    quarantine: Quarantine
    task: str
    queue: AnswerQueue
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.dropped = 0
        self._waiting: dict[str, int] = {}
        self._bytes = 0
        self._voice = LogRateLimiter(self.now)

    def send_accepted(self, device: str, round_: int, digest: str) -> None:
        """Tell a device that its update is in the journal and synced."""
        self.accepted += 1
        self.enqueue(
            device, Kind.RECEIPT, Receipt(task=self.task, round=round_, digest=digest, status="accepted")
        )

    def send_refused(
        self, device: str, round_: int, digest: str | None, refused: Refused, *, conduct: bool = True
    ) -> None:
        """Count a refusal, and send it if the device can match it (by the digest that it sent).

        Args:
            device: the sender.
            round_: the round concerned.
            digest: of the refused message; None: the device waits for no answer.
            refused: why.
            conduct: whether it may count as an offence.
        """
        self.refused[refused.reason.value] += 1
        unsaid = self._voice.unsaid(device)
        if unsaid is not None:
            detail = cut(refused.detail, _DETAIL)
            log.warning("refused", device=device, reason=refused.reason.value, detail=detail, **more(unsaid))
        self.ledger.refused(device, refused)
        follows = self.quarantine.refused(device, refused) if conduct else ""
        if digest is not None:
            receipt = Receipt(
                task=self.task,
                round=round_,
                digest=digest,
                status="refused",
                reason=refused.reason,
                detail=f"{refused.detail[:300]}; {follows}"[:500] if follows else refused.detail[:500],
            )
            self.enqueue(device, Kind.RECEIPT, receipt)

    def enqueue(self, device: str, kind: Kind, message: Wire) -> None:
        """Queue a message; drop it if too many wait."""
        size = _size(message)
        if self._waiting.get(device, 0) >= PER_DEVICE or self._bytes + size > MOST_BYTES:
            self.dropped += 1
            return
        self._waiting[device] = self._waiting.get(device, 0) + 1
        self._bytes += size
        self.queue.put_nowait((device, kind, message))

    async def run(self) -> None:
        """Send queued messages, for ever."""
        while True:
            device, kind, message = await self.queue.get()
            try:
                await self.post.to_device(device, kind, message)
            except LichenError as error:
                if (unsaid := self._voice.unsaid(device)) is not None:
                    log.warning("not_told", device=device, topic=kind.value, why=str(error), **more(unsaid))
            finally:
                self._bytes -= _size(message)
                self._waiting[device] -= 1
                if not self._waiting[device]:
                    del self._waiting[device]
                self.queue.task_done()

    async def drained(self) -> None:
        """Wait until everything queued is sent, or has failed."""
        await self.queue.join()

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks to run: several senders, so that one slow answer delays few."""
        return {f"teller-{n}": self.run for n in range(SENDERS)}

    def metrics(self) -> Iterable[MetricFamily]:
        """Counts of accepted and refused messages."""
        yield counter("lichen_updates_accepted", "Updates accepted since the start", self.accepted)
        refused = [((reason,), float(count)) for reason, count in sorted(self.refused.items())]
        yield MetricFamily("lichen_refused", "Refusals since the start", "counter", refused, ("reason",))


def _size(message: Wire) -> int:
    """About its bytes in memory; of the kinds that are answers, refusals and pointers alone are long."""
    if isinstance(message, Receipt):
        return _ANSWER_BYTES + len(message.detail)
    return _ANSWER_BYTES if isinstance(message, Command) else 8 * _ANSWER_BYTES
