"""Which rounds this device has dealt with, on disk: the same offer twice trains once, whatever restarts."""

import threading
from pathlib import Path
from typing import Final, Literal

import structlog
from pydantic import ValidationError

from protocol.base import Count, Digest, Frozen, Name
from protocol.errors import Reason
from protocol.messages import Offer, Receipt
from runtime.clock import Clock
from runtime.files import write_atomic

_log = structlog.get_logger("edge_agent.ledger")
KEPT: Final = 32
GRACE_S: Final = 30.0
"""An offer this long after its update was accepted says that the coordinator has lost it: train again."""


class Entry(Frozen):
    """One round: ``spooled`` until its receipt."""

    task: Name
    round: Count
    base: Digest
    digest: Digest
    status: Literal["spooled", "accepted", "refused"] = "spooled"
    reason: Reason | None = None


class _File(Frozen):
    entries: tuple[Entry, ...] = ()


class Ledger:
    """The last rounds, newest last. Thread-safe."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._lock = threading.Lock()  # a receipt may come while the next update is spooled
        self._path = path
        self._clock = clock
        self._entries = list(_read(path).entries)
        self._settled = dict.fromkeys((e.digest for e in self._entries), clock.now())

    def find(self, offer: Offer) -> Entry | None:
        """What was done about an offer."""
        for entry in reversed(self._entries):
            if (entry.task, entry.round, entry.base) == (offer.task, offer.round, offer.base):
                return entry
        return None

    def is_done(self, offer: Offer) -> bool:
        """Whether an offer needs no training. What is still in the spool is the caller's question."""
        entry = self.find(offer)
        if entry is None or entry.status == "spooled":
            return False
        fresh = self._clock.now() - self._settled.get(entry.digest, -GRACE_S) < GRACE_S
        # The same update would be refused again, unless the coordinator only had no room for it.
        return fresh or (entry.status == "refused" and entry.reason not in {Reason.FULL, Reason.WRONG_DIGEST})

    def spooled(self, offer: Offer, digest: str) -> None:
        """An update for this offer is in the spool."""
        with self._lock:
            kept = [e for e in self._entries if (e.task, e.round) != (offer.task, offer.round)]
            new = Entry(task=offer.task, round=offer.round, base=offer.base, digest=digest)
            self._entries = [*kept, new][-KEPT:]
            self._write()

    def settled(self, receipt: Receipt) -> None:
        """The receipt of an update came."""
        update = {"status": receipt.status, "reason": receipt.reason}
        with self._lock:
            self._entries = [
                e.model_copy(update=update) if e.digest == receipt.digest else e for e in self._entries
            ]
            self._settled[receipt.digest] = self._clock.now()
            self._settled = {e.digest: self._settled.get(e.digest, self._clock.now()) for e in self._entries}
            self._write()

    def _write(self) -> None:
        write_atomic(self._path, _File(entries=tuple(self._entries)).model_dump_json().encode())


def _read(path: Path) -> _File:
    try:
        return _File.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return _File()
    except (OSError, ValidationError) as error:
        # At worst one round is trained twice; the coordinator counts it once.
        _log.warning("the ledger of rounds is forgotten", file=str(path), error=str(error))
        return _File()
