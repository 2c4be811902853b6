"""Rounds that this device has handled, on disk: an offer is trained once, even after a restart."""

import threading
from pathlib import Path
from typing import Annotated, Final, Literal

import structlog
from pydantic import Field, ValidationError

from protocol.base import Count, Digest, Name, ReasonWord, Wire
from protocol.errors import Reason
from protocol.messages import Offer, Receipt
from runtime.clock import Clock
from runtime.pacing import backoff_s
from runtime.storage.files import write_atomic

_log = structlog.get_logger(__name__)
MAX_ENTRIES: Final = 32
GRACE_S: Final = 30.0
"""Seconds after acceptance; an offer of a later attempt that still lacks the update then means that the
coordinator lost it: train again."""
RETRY_S: Final = 10.0
MAX_RETRY_S: Final = 120.0
FINAL_RETRY_S: Final = 600.0
"""Seconds after a final refusal until the offer is tried again: its bits may have been damaged on the way."""
FINAL: Final = frozenset(
    {
        *(Reason.MALFORMED, Reason.TOO_LARGE, Reason.WRONG_TENSORS, Reason.WRONG_MODALITY),
        *(Reason.NON_FINITE, Reason.OUT_OF_BOUNDS, Reason.WRONG_DEVICE, Reason.OUTLIER),
    }
)
"""Refusals caused by the update itself, which would recur. All others depend on the moment."""
OF_THE_ROUND: Final = frozenset(
    {Reason.NOT_SELECTED, Reason.WRONG_ROUND, Reason.WRONG_BASE, Reason.DUPLICATE, Reason.UNKNOWN_TASK}
)
"""Refusals of any update of this attempt: the offer is old, or the coordinator has another update."""
_AGAIN: Final = "tried again when the offer comes again"


class Entry(Wire):
    """One round; ``spooled`` until its receipt."""

    task: Name
    round: Count
    base: Digest
    attempt: Count = 1
    """Of the round, when the update was made."""
    digest: Digest
    status: Literal["spooled", "accepted", "refused"] = "spooled"
    reason: ReasonWord | None = None
    detail: Annotated[str, Field(max_length=500)] = ""
    refusals: Count = 0
    """Refused updates of this offer."""

    @property
    def is_final(self) -> bool:
        """Whether the update was refused, and would be again."""
        return self.status == "refused" and self.reason in FINAL

    @property
    def why(self) -> str:
        """The refusal as text."""
        return f"{self.reason or 'refused'}: {self.detail or 'no detail given'}"


class _File(Wire):
    entries: tuple[Entry, ...] = ()


class RoundLedger:
    """The last rounds, newest last. Thread-safe.

    Args:
        path: the file.
        clock: paces repeated attempts.
        retry_s: first pause after a refusal that is not final; it doubles with each one, up to two minutes.
    """

    def __init__(self, path: Path, clock: Clock, retry_s: float = RETRY_S) -> None:
        self._lock = threading.Lock()  # a receipt may come while the next update is being spooled
        self._path = path
        self._clock = clock
        self._retry_s = retry_s
        self._entries = list(_read(path).entries)
        self._settled = dict.fromkeys((e.digest for e in self._entries), clock.now())

    def find(self, offer: Offer) -> Entry | None:
        """The entry of an offer, if any."""
        for entry in reversed(self._entries):
            if (entry.task, entry.round, entry.base) == (offer.task, offer.round, offer.base):
                return entry
        return None

    def of_digest(self, digest: str) -> Entry | None:
        """The entry of an update, if any."""
        return next((entry for entry in self._entries if entry.digest == digest), None)

    def reason_to_skip(self, offer: Offer, *, lost: bool = False) -> str:
        """Why an offer needs no training now; empty if it does. The caller checks the spool.

        Args:
            offer: that asks this device.
            lost: the coordinator does not count an update of this device.
        """
        entry = self.find(offer)
        if entry is None or entry.status == "spooled":
            return ""
        since = self._clock.now() - self._settled.get(entry.digest, -FINAL_RETRY_S)
        if entry.is_final:
            words = f"this offer's update was refused: {entry.why}; waiting for the next round"
            return words if since < FINAL_RETRY_S else ""
        if entry.status == "accepted":
            again = lost and entry.attempt < offer.attempt and since >= GRACE_S
            return "" if again else f"round {entry.round} was accepted; waiting for the next offer"
        reopened = entry.attempt < offer.attempt and (lost or entry.reason != Reason.DUPLICATE)
        if entry.reason in OF_THE_ROUND and reopened:
            return ""  # the refusal was of an attempt that is over, and this one asks the device
        first_s = MAX_RETRY_S if entry.reason in OF_THE_ROUND else self._retry_s
        pause = backoff_s(first_s, MAX_RETRY_S, max(0, entry.refusals - 1))
        return f"round {entry.round} was refused: {entry.why}; {_AGAIN}" if since < pause else ""

    def first_status(self) -> str:
        """Status of a learner that has just started: an earlier refusal may explain why no offer comes."""
        last = self._entries[-1] if self._entries else None
        if last is None or last.status != "refused":
            return "no offer yet"
        return f"no offer yet; the last update, of round {last.round}, was refused: {last.why}"

    def record_spooled(self, offer: Offer, digest: str) -> None:
        """Record that an update for this offer is in the spool."""
        with self._lock:
            kept = [e for e in self._entries if (e.task, e.round) != (offer.task, offer.round)]
            before = self.find(offer)
            refusals = 0 if before is None else before.refusals
            new = Entry(
                task=offer.task,
                round=offer.round,
                base=offer.base,
                attempt=offer.attempt,
                digest=digest,
                refusals=refusals,
            )
            self._entries = [*kept, new][-MAX_ENTRIES:]
            self._write()

    def settle(self, receipt: Receipt) -> None:
        """Record the receipt of an update."""
        with self._lock:
            self._entries = [_with(e, receipt) if e.digest == receipt.digest else e for e in self._entries]
            self._settled[receipt.digest] = self._clock.now()
            self._settled = {e.digest: self._settled.get(e.digest, self._clock.now()) for e in self._entries}
            self._write()

    def withdraw(self, receipt: Receipt) -> bool:
        """Record the refusal of an accepted update; False if it is known already, or not ours."""
        with self._lock:
            known = any(e.digest == receipt.digest and e.status == "accepted" for e in self._entries)
        if known:
            self.settle(receipt)
        return known

    def describe(self, receipt: Receipt) -> str:
        """The learner's status after a receipt."""
        if receipt.status == "accepted":
            return f"round {receipt.round} was accepted; waiting for the next offer"
        for entry in self._entries:
            if entry.digest == receipt.digest and entry.is_final:
                return f"this offer's update was refused: {entry.why}; waiting for the next round"
        return f"round {receipt.round} was refused: {receipt.reason or 'refused'}: {receipt.detail}; {_AGAIN}"

    def _write(self) -> None:
        write_atomic(self._path, _File(entries=tuple(self._entries)).model_dump_json().encode())


def _with(entry: Entry, receipt: Receipt) -> Entry:
    refused = receipt.status != "accepted"
    update = {"reason": receipt.reason, "detail": receipt.detail, "refusals": entry.refusals + refused}
    return entry.model_copy(update={"status": "refused" if refused else "accepted", **update})


def _read(path: Path) -> _File:
    try:
        return _File.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return _File()
    except (OSError, ValidationError) as error:
        # At worst one round is trained twice; the coordinator counts it once.
        _log.warning("round_ledger_unreadable", file=str(path), error=str(error))
        return _File()
