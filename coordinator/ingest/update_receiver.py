"""Receives an update, from bytes to journal: verify, decode, bound, check, write, sync; then the receipt."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from coordinator.admission.access import AccessControl
from coordinator.aggregation.current_model import CurrentModel
from coordinator.aggregation.outlier_screen import Magnitudes
from coordinator.aggregation.secure.rounds import SecureRounds
from coordinator.ingest.chunked_uploads import Uploads
from coordinator.ingest.group_commit import GroupCommit
from coordinator.ingest.round_access import Registered, RoundAccess
from coordinator.ingest.verifier import Verifier
from coordinator.messaging.receipts import ReceiptSender
from coordinator.privacy.account_store import AccountStore
from coordinator.round_machine.events import RoundState
from coordinator.round_machine.queries import check_acceptable
from coordinator.storage.update_journal import Journal
from coordinator.telemetry.round_tracing import RoundTracing
from models.contract import Server
from protocol.errors import Reason, Refused
from protocol.frames.frame import check_seal, digest, is_frame
from protocol.messages import MAX_MESSAGE_BYTES, BlobPointer, decode
from protocol.secure_aggregation.messages import is_secure
from protocol.tasks.task import Task
from protocol.topics import Kind, Route
from runtime.metrics import MetricFamily, counter
from runtime.mqtt.link import Message

log = structlog.get_logger(__name__)

_SMALL_BYTES: Final = 64 * 1024
_JUDGED_BY_ROUND: Final = frozenset(
    {Reason.WRONG_ROUND, Reason.WRONG_BASE, Reason.NOT_SELECTED, Reason.UNKNOWN_DEVICE}
)
"""Reasons that may be over: where another process leads, the round is known here a moment later."""


class UpdateReceiver:
    """Handles the payloads of ``up/update`` and ``up/blob``; ``note`` gets the norms of checked updates."""

    def __init__(
        self,
        *,
        task: Task,
        server: Server,
        driver: RoundAccess,
        model: CurrentModel,
        note: Callable[[str, Magnitudes], None],
        journal: Journal,
        roster: Registered,
        uploads: Uploads,
        receipts: ReceiptSender,
        access: AccessControl,
        tracing: RoundTracing,
        accounts: AccountStore,
        secure: SecureRounds | None = None,
    ) -> None:
        self._secure = secure
        self._task = task
        self._driver = driver
        self._model = model
        self._note = note
        self._tracing = tracing
        self._journal = journal
        self._roster = roster
        self._uploads = uploads
        self._receipts = receipts
        self._access = access
        self.commits = GroupCommit(driver, journal)
        self.verifier = Verifier(task, server, model, driver, accounts, secure=secure)
        self._entered = -1
        self.stray_chunks = 0
        self._spoiled: dict[str, str] = {}

    async def on_update(self, route: Route, message: Message) -> bool:
        """Handle one message.

        Returns:
            False: it is acknowledged when this returns.

        Raises:
            Refused: a chunk whose topic names no blob.
            Transient, OSError: not stored; the device sends again.
        """
        await self._handle(route, message.payload)
        return False

    async def _handle(self, route: Route, payload: bytes) -> None:
        device = route.device or ""
        barred = self._access.denial(device)
        if barred is not None:
            await self._refuse_denied(device, route, payload, barred)
            return
        round_ = self._driver.state.round
        if round_ != self._entered:
            await asyncio.to_thread(self._uploads.enter_round, round_)
            self._entered = round_
        if route.kind is Kind.UP_BLOB:
            await self._chunk(device, route.digest or "", route.index or 0, payload)
            return
        if self._secure is not None and is_secure(payload):
            await self._secure.on_message(device, payload)
            return
        mark = await _digest(payload)
        if is_frame(payload):
            await self._update(device, payload, mark)
            return
        try:
            pointer = _pointer_in(payload)
        except Refused as refused:  # neither a frame nor a pointer: its own digest identifies it
            if refused.reason is Reason.UNKNOWN_KIND:
                raise
            await self._refuse(device, self._driver.state.round, mark, refused)
            return
        await self._pointer(device, pointer)

    async def _refuse_denied(self, device: str, route: Route, payload: bytes, barred: Refused) -> None:
        """Answer a barred device at intervals, without decoding a tensor; other payloads are dropped."""
        if route.kind is Kind.UP_BLOB or not self._access.may_reply(device):
            return
        mark = await _digest(payload)
        if not is_frame(payload):
            with contextlib.suppress(Refused):  # its own digest identifies garbage
                mark = _pointer_in(payload).blob.digest
        if not await self._again(device, mark):  # an update that counts is not refused afterwards
            await self._refuse(device, self._driver.state.round, mark, barred)

    async def _pointer(self, device: str, pointer: BlobPointer, *, again: bool = False) -> None:
        mark, judged = pointer.blob.digest, self._driver.state
        try:
            if self._is_here(device, mark):
                return
            self._check_pointer(device, pointer)
            limits = self._model.limits(await self._model.state())
            answer = await asyncio.to_thread(self._uploads.announce, device, pointer, limits.max_bytes)
        except Refused as refused:
            if not again and await self._judged_by_old_round(device, refused, judged):
                await self._pointer(device, pointer, again=True)
            elif not await self._again(device, mark):
                await self._refuse(device, pointer.round, mark, refused)
            return
        if isinstance(answer, bytes):
            await self._update(device, answer, mark)
        else:
            self._receipts.enqueue(device, Kind.RECEIPT, answer)

    def _check_pointer(self, device: str, pointer: BlobPointer) -> None:
        """Check before any chunk is accepted what the header must say, too."""
        if pointer.task != self._task.name:
            raise Refused(
                Reason.UNKNOWN_TASK, f"task {pointer.task!r}; this coordinator runs {self._task.name!r}"
            )
        self._check_known(device)
        check_acceptable(self._driver.state, device, pointer.round, None)

    async def _chunk(self, device: str, mark: str, index: int, data: bytes) -> None:
        try:
            done = await asyncio.to_thread(self._uploads.add, device, mark, index, data)
        except Refused as refused:
            # Wrong bytes may be our disk's fault: the device is only asked for them again, once.
            final = refused.reason is Reason.WRONG_DIGEST and self._spoiled.get(device) == mark
            if refused.reason is Reason.WRONG_DIGEST:
                self._spoiled[device] = mark
            self._receipts.send_refused(device, self._driver.state.round, mark if final else None, refused)
            return
        if done is not None:
            await self._update(device, done, mark)
        elif not self._uploads.expects(device, mark):
            self.stray_chunks += 1

    def _is_here(self, device: str, mark: str) -> bool:
        """Whether exactly this update was accepted in the open round: then only the receipt was lost."""
        found = self._driver.accepted.has(device, mark)
        if found:
            self._receipts.send_accepted(device, self._driver.state.round, mark)
        return found

    async def _again(self, device: str, mark: str) -> bool:
        """The same for all rounds; it reads the journal, so it is not used for updates that may count now."""
        if self._is_here(device, mark):
            return True
        round_ = await asyncio.to_thread(self._journal.find, device, mark)
        if round_ is not None:
            self._receipts.send_accepted(device, round_, mark)
        return round_ is not None

    async def _judged_by_old_round(self, device: str, refused: Refused, judged: RoundState) -> bool:
        """Whether a refusal was made on a state of the round, or of the registry, that has changed since."""
        return refused.reason in _JUDGED_BY_ROUND and await self._driver.refresh(device, judged)

    async def _update(self, device: str, payload: bytes, mark: str, *, again: bool = False) -> None:
        """Verify, decode, bound, check, write to the journal; then send the receipt."""
        offered, judged, arrived = (
            self.verifier.offered(device, payload),
            self._driver.state,
            self._tracing.wall(),
        )
        try:
            if self._is_here(device, mark):
                return
            self._check_known(device)
            if self._secure is not None:
                await self._secure.ready()
            found = await self.verifier.verify(offered)
            verified = self._tracing.wall()
            self._note(mark, found.norms)
            await self.commits.accept(found.header, mark, payload, found.blobs)
        except Refused as refused:
            if not again and await self._judged_by_old_round(device, refused, judged):
                await self._update(device, payload, mark, again=True)
            elif not await self._again(device, mark):
                await self._refuse(device, offered.round, mark, refused)
            return
        self._tracing.accepted(found.header, arrived, verified)
        self._roster.contributed(device)
        self._receipts.send_accepted(device, found.header.round, mark)

    async def _refuse(self, device: str, round_: int, mark: str, refused: Refused) -> None:
        """Record that a device delivers, from a whole update or a pointer: the round need not wait for it."""
        self._receipts.send_refused(device, round_, mark, refused)
        await self._driver.refuse(device, round_, refused.reason)

    def _check_known(self, device: str) -> None:
        if device not in self._roster:
            raise Refused(Reason.UNKNOWN_DEVICE, f"{device} has never reported a state")
        if self._driver.state.version < 0:
            raise Refused(Reason.WRONG_ROUND, "there is no model yet")

    def metrics(self) -> Iterable[MetricFamily]:
        """Counts of written updates."""
        yield counter("lichen_update_groups", "Transactions that accepted them", self.commits.groups)


async def _digest(payload: bytes) -> str:
    """Its SHA-256: of a small payload at once, because a hop to a thread costs more."""
    if len(payload) <= _SMALL_BYTES:
        return digest(payload)
    return await asyncio.to_thread(digest, payload)


def _pointer_in(payload: bytes) -> BlobPointer:
    check_seal(payload)
    if len(payload) > MAX_MESSAGE_BYTES:
        raise Refused(
            Reason.TOO_LARGE,
            f"{len(payload)} bytes is neither an update frame nor a pointer to one",
        )
    return decode(payload, BlobPointer)
