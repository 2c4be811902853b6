"""Withdrawn updates: a refusal after the receipt is repeated until the device confirms it.

The first refusal is sent when the update is withdrawn. It is lost if the broker is away, too many answers
wait, or the coordinator ends in between; so the journal stores it, and at each state of the device the
refusals that the state does not confirm (``State.withdrawn``) are sent again.
"""

import asyncio
from math import inf
from typing import Any, Final

from coordinator.messaging.receipts import ReceiptSender
from coordinator.storage.update_journal import WITHDRAWN_S, Journal
from protocol.messages import Receipt, State
from protocol.topics import Kind
from runtime.clock import Clock

_RESEND_INTERVAL_S: Final = 10.0
_TRIED_S: Final = 600.0
"""An old refusal is not forgotten before this process has sent it for so long: a clock that is set makes it
old at once."""
_MAX_DEVICES: Final = 10_000


class Withdrawals:
    """Answers states of devices that may not know of a withdrawn update yet."""

    def __init__(self, journal: Journal, receipts: ReceiptSender, task: str, clock: Clock) -> None:
        self._journal = journal
        self._receipts = receipts
        self._task = task
        self._clock = clock
        self._sent: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """Device -> since when this process knows of a refusal that it has not confirmed."""

    async def heard(self, state: State) -> None:
        """Remove the refusals that a state confirms, and send the others again.

        Raises:
            Transient: the database cannot be read or written now; the next state will come.
        """
        device = state.device
        if not self._journal.has_unconfirmed(device):
            return
        rows = await asyncio.to_thread(self._journal.withdrawn, device)
        oldest = self._clock.wall() - WITHDRAWN_S if self._has_tried(device) else -inf
        confirmed = set(state.withdrawn or ())
        over = [row["digest"] for row in rows if row["digest"] in confirmed or row["wall"] < oldest]
        if over or not rows:
            await asyncio.to_thread(self._journal.confirmed, device, over)
            self._since.pop(device, None)
        if state.status == "online" and self._is_due(device):
            for row in rows:
                if row["digest"] not in over:
                    self._receipts.enqueue(device, Kind.RECEIPT, self._receipt(row))

    def _has_tried(self, device: str) -> bool:
        now = self._clock.now()
        if len(self._since) >= _MAX_DEVICES:
            self._since.clear()
        return now - self._since.setdefault(device, now) >= _TRIED_S

    def _is_due(self, device: str) -> bool:
        now = self._clock.now()
        if now - self._sent.get(device, -_RESEND_INTERVAL_S) < _RESEND_INTERVAL_S:
            return False
        if len(self._sent) >= _MAX_DEVICES:
            self._sent.clear()
        self._sent[device] = now
        return True

    def _receipt(self, row: dict[str, Any]) -> Receipt:
        return Receipt(
            task=self._task,
            round=row["round"],
            digest=row["digest"],
            status="refused",
            reason=row["reason"],  # also a reason of a newer release that this one does not know
            detail=row["detail"],
        )
