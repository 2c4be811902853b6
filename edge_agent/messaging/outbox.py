"""Keeps updates in the spool, and sends them until a ``Receipt`` clears them. A PUBACK is not a receipt.

A frame of at most one chunk goes to ``up/update`` as it is. A larger one is announced by a ``BlobPointer``;
the coordinator's ``Want`` names the missing chunks. Frame or pointer are sent again every ``resend_s`` (with
jitter), and at every connect. Waiting updates are on disk, within the spool's budget: when it is full, the
oldest is dropped.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray

from edge_agent.config.agent import AgentSettings
from edge_agent.messaging.contact import Contact
from edge_agent.messaging.device_trace import NO_TRACE, DeviceTrace
from edge_agent.ports import TaskLink
from edge_agent.storage.round_ledger import RoundLedger
from protocol.errors import Refused, Transient
from protocol.frames.chunks import chunk_at, chunk_count
from protocol.messages import BlobPointer, BlobRef, Offer, Receipt, Want, decode, encode
from protocol.topics import Kind, Route, device_topic
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.concurrency.uninterrupted import finished
from runtime.storage.spool import Spool, SpoolEntry
from runtime.waits import StatusPart, StatusText, Wait

_log = structlog.get_logger(__name__)
_CHUNK_S: Final = 120.0
"""For a chunk's PUBACK: on a slow link the last chunk of a window waits for the others."""
MAX_WANTS: Final = 16
"""Wants kept while chunks are being sent, the newest of each update; more are dropped, and come again."""
_MAX_CONFIRMED: Final = 16


@dataclass(frozen=True, slots=True)
class PackedUpdate:
    """The update of one round: ``frame`` answers ``offer``; ``carry`` is the quantization error (float32)."""

    offer: Offer
    digest: str
    frame: bytes
    carry: Mapping[str, NDArray[np.float32]] | None


@dataclass(eq=False, repr=False)
class Outbox(StatusPart):
    """One service: check waiting updates, send those that are due, wait for news.

    Args:
        link: to the coordinator.
        spool: stores waiting updates.
        ledger: of handled rounds.
        settings: of the agent.
        clock: paces it.
        learning: is told what a receipt means for the learner.
        contact: knows when the coordinator was last heard.
        state_wanted: set if the coordinator must hear that a refusal has come.
        changed: set with it.
        rng: jitter; None creates one.
        trace: records receipts.
    """

    link: TaskLink
    spool: Spool
    ledger: RoundLedger
    settings: AgentSettings
    clock: Clock
    learning: StatusText
    contact: Contact
    state_wanted: Signal
    changed: Signal
    rng: random.Random | None = None
    trace: DeviceTrace = NO_TRACE

    def __post_init__(self) -> None:
        self._fleet, self._device = self.settings.fleet, self.settings.device
        self._resend_s = self.settings.outbox.resend_s
        self._window = self.settings.mqtt.window
        self._due: dict[str, float] = {}
        self._chunk_bytes: dict[str, int] = {}
        self._wants: dict[str, Want] = {}
        self._news = Signal()
        self._rests = False
        self._random = self.rng or random.Random()  # noqa: S311 - jitter
        self.waiting = 0
        self.oldest: float | None = None
        """Since when the oldest update has waited, unix seconds."""
        self.again_at: float | None = None
        """Time of the next sending, unix seconds."""
        self.accepted = 0
        self.refused = 0
        self.withdrawn = 0
        """Updates that were accepted, and refused later."""
        self.last_refusal = ""
        self.confirmed: deque[str] = deque(maxlen=_MAX_CONFIRMED)
        """Digests of updates that were refused after they had left the spool; the state message lists them.
        """

    async def submit(
        self, update: PackedUpdate, together: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Store an update until its receipt, and send it.

        Args:
            update: of one round.
            together: entered in the writing thread; it writes before the update is written.

        Raises:
            Transient: the disk is full; nothing is sent.
            asyncio.CancelledError: the caller was cancelled; the update is stored and sent all the same.
        """
        try:
            await finished(asyncio.to_thread(self._keep, update, together))
        except asyncio.CancelledError:
            self.send_all()
            raise
        self.send_all()

    def _keep(self, update: PackedUpdate, together: Callable[[], AbstractContextManager[None]]) -> None:
        """Write the ledger first: if only its entry is written, the round is trained again."""
        offer = update.offer
        with together():
            self.ledger.record_spooled(offer, update.digest)
            name, frame, carry = update.digest, update.frame, update.carry
            self.spool.put(task=offer.task, round_=offer.round, digest=name, payload=frame, carry=carry)

    def send_all(self) -> None:
        """After a connect, or a new update: make all of them due."""
        self._due.clear()
        self._news.set()

    def rest(self) -> None:
        """Send nothing: the task was withdrawn, and nobody takes its updates. They stay in the spool."""
        self._rests = True

    def resume(self) -> None:
        """Send again: the task was announced."""
        self._rests = False
        self.send_all()

    def on_want(self, want: Want) -> None:
        """Record the chunks that the coordinator lacks."""
        if want.digest in self._wants or len(self._wants) < MAX_WANTS:
            self._wants[want.digest] = want
            self._news.set()

    async def on_answer(self, _route: Route, payload: bytes) -> None:
        """Handle a ``Receipt`` or a ``Want``. Raises Refused; Transient if the disk is full."""
        answer = decode(payload, Receipt, Want)
        if isinstance(answer, Want):
            self.on_want(answer)
        elif isinstance(answer, Receipt):
            await self.on_receipt(answer)

    async def on_receipt(self, receipt: Receipt) -> bool:
        """Remove an update that is journaled or refused for good. True if it was in the spool.

        The ledger is written first: after an interruption the update is sent again, but not trained again.
        """
        waiting = await asyncio.to_thread(self.spool.pending)
        if any(entry.digest == receipt.digest for entry in waiting):
            await asyncio.to_thread(self.ledger.settle, receipt)
            self.learning.say(self.ledger.describe(receipt))
            if self.trace.on and (update := self.ledger.of_digest(receipt.digest)) is not None:
                since = max(entry.created_wall for entry in waiting if entry.digest == receipt.digest)
                self.trace.sent(update, since, receipt.status)
        if not await asyncio.to_thread(self.spool.clear, receipt.digest):
            if receipt.status == "refused":
                await self._on_withdrawn(receipt)
            return False
        for known in (self._due, self._chunk_bytes, self._wants):
            known.pop(receipt.digest, None)
        if receipt.status == "accepted":
            self.accepted += 1
            _log.info("update_accepted", task=receipt.task, round=receipt.round)
        else:
            self.refused += 1
            self.last_refusal = f"{receipt.reason or 'refused'}: {receipt.detail}"
            _log.error("update_refused", task=receipt.task, round=receipt.round, why=self.last_refusal)
        self._news.set()
        return True

    async def _on_withdrawn(self, receipt: Receipt) -> None:
        """The update was refused after it had left the spool; the ledger knows if it was accepted before."""
        if await asyncio.to_thread(self.ledger.withdraw, receipt):
            if self.learning.until is None:  # no round is being trained, or waits to be tried again
                self.learning.say(self.ledger.describe(receipt))
            self.withdrawn += 1
            self.last_refusal = f"{receipt.reason or 'refused'}: {receipt.detail}"
            _log.error("update_withdrawn", task=receipt.task, round=receipt.round, why=self.last_refusal)
        if receipt.digest not in self.confirmed:
            self.confirmed.append(receipt.digest)
        self.state_wanted.set()
        self.changed.set()

    def status(self) -> dict[str, Any]:
        """Waiting updates, and the outcome of the others."""
        return {
            "outbox": {
                "waiting": self.waiting,
                "accepted": self.accepted,
                "refused": self.refused,
                "withdrawn": self.withdrawn,
                "last_refusal": self.last_refusal,
                "dropped": self.spool.dropped,
                "rotten": self.spool.rotten,
            }
        }

    def waits(self) -> Iterator[Wait]:
        """The wait for receipts."""
        if self.waiting and not self._rests:
            words = (
                f"{self.waiting} updates have no receipt" if self.waiting > 1 else "an update has no receipt"
            )
            words += f"; the last one was refused: {self.last_refusal}" if self.last_refusal else ""
            if self.link.connected:
                words += self.contact.silence_text(self.oldest, self.again_at, self._resend_s)
            yield Wait("receipt", words, self.oldest, self.again_at, "it is sent again")

    async def run(self) -> None:
        """Send for ever."""
        while True:
            entries = await self._pending()
            self.waiting = len(entries)
            self.oldest = min((entry.created_wall for entry in entries), default=None)
            self._forget_all_but({entry.digest for entry in entries})
            pause = self._resend_s
            if self._rests:
                entries = []
            for entry in entries:
                pause = min(pause, await self._send_if_due(entry))
            self.again_at = self.clock.wall() + pause if entries else None
            await self._news.wait(pause if entries else None)

    def _forget_all_but(self, waiting: set[str]) -> None:
        """Forget updates that were dropped or replaced in the spool: their wants would delay others."""
        for known in (self._due, self._chunk_bytes, self._wants):
            for digest in known.keys() - waiting:
                del known[digest]

    async def _pending(self) -> list[SpoolEntry]:
        while True:
            try:
                return await asyncio.to_thread(self.spool.pending)
            except Transient as error:
                _log.warning("spool_unreadable", why=str(error))
                await self.clock.sleep(self._resend_s)

    async def _send_if_due(self, entry: SpoolEntry) -> float:
        """Send an update if it is due. Returns the seconds until it is due again."""
        try:
            want = self._wants.pop(entry.digest, None)
            if want is not None:
                await self._send_chunks(entry, want)
            elif self.clock.now() >= self._due.get(entry.digest, 0.0):
                await self._announce(entry)
            else:
                return max(0.0, self._due[entry.digest] - self.clock.now())
        except Transient as error:
            _log.debug("update_not_sent", round=entry.round, why=str(error))
        except Refused as error:
            _log.error("update_unsendable", round=entry.round, why=str(error))
        except KeyError:  # its receipt has come meanwhile
            return self._resend_s
        pause = self._resend_s * self._random.uniform(0.8, 1.2)
        self._due[entry.digest] = self.clock.now() + pause
        return pause

    async def _announce(self, entry: SpoolEntry) -> None:
        topic = device_topic(self._fleet, self._device, Kind.UPDATE)
        chunk = self.link.chunk_bytes
        if entry.size <= chunk:
            payload = await asyncio.to_thread(self.spool.payload, entry.digest)
            await self.link.publish(topic, payload)
            return
        self._chunk_bytes[entry.digest] = chunk
        blob = BlobRef(digest=entry.digest, size=entry.size)
        pointer = BlobPointer(task=entry.task, round=entry.round, blob=blob, chunk_bytes=chunk)
        await self.link.publish(topic, encode(pointer))

    async def _send_chunks(self, entry: SpoolEntry, want: Want) -> None:
        """Send the wanted chunks, ``window`` at a time; a receipt for the update stops it."""
        chunk = self._chunk_bytes.get(entry.digest)
        if chunk is None:  # an answer to a pointer of an earlier process: announce it again
            await self._announce(entry)
            return
        payload = await asyncio.to_thread(self.spool.payload, entry.digest)
        last = chunk_count(len(payload), chunk) - 1
        indices = sorted({n for a, b in want.missing for n in range(a, min(b, last) + 1)})
        for at in range(0, len(indices), self._window):
            if entry.digest not in self._chunk_bytes:
                return
            sends = [
                self._send(entry.digest, n, chunk_at(payload, n, chunk))
                for n in indices[at : at + self._window]
            ]
            failed = [
                r
                for r in await asyncio.gather(*sends, return_exceptions=True)
                if isinstance(r, BaseException)
            ]
            if failed:
                raise failed[0]

    async def _send(self, digest: str, index: int, data: bytes) -> None:
        topic = device_topic(self._fleet, self._device, Kind.UP_BLOB, digest, index)
        await self.link.publish(topic, data, timeout_s=_CHUNK_S)
