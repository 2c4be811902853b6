"""Signs the work of devices: the task, and each round's offer, once for all devices."""

import threading
from collections.abc import Callable
from typing import Final

from coordinator.storage.database import Database
from coordinator.trust.signer import PointerSigner, Signer
from protocol.messages import Offer
from protocol.tasks.announcement import TaskAnnouncement
from protocol.trust.signed_work import draft_offer, draft_task
from protocol.trust.signing import Envelope
from runtime.clock import Clock

META: Final = "work_serial"
"""The key of the table ``meta``: the last signed serial."""
_BEGAN_S: Final = 1_577_836_800.0
"""Serials count seconds since 2020."""


class WorkSigner:
    """The signer of one coordinator. Thread-safe.

    Args:
        pointer_signer: the key.
        store: holds the last serial: a clock may go back.
        clock: serials follow it, so that they rise even if the store was lost.
    """

    def __init__(self, pointer_signer: PointerSigner, store: Database, clock: Clock) -> None:
        self._pointer_signer = pointer_signer
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._task: tuple[object, str] | None = None
        self._offer: tuple[object, str] | None = None

    def task(self, announcement: TaskAnnouncement) -> TaskAnnouncement:
        """The announcement, signed; unchanged if there is no root. Blocks for a disk.

        Raises:
            Misconfigured: a key or a root is missing.
            Transient: the disk is full.
        """
        signer = self._pointer_signer.signer()
        if signer is None:
            return announcement

        def draft(serial: int) -> Envelope:
            return draft_task(announcement, self._pointer_signer.fleet, serial, signer.number, signer.roots)

        with self._lock:
            self._task = self._signed(self._task, (signer.written, announcement), signer, draft)
            return announcement.model_copy(update={"signed": self._task[1]})

    def offer(self, offer: Offer) -> Offer:
        """The offer, signed; unchanged if there is no root. Blocks for a disk.

        The signature stays the same until something that is signed or the root changes.

        Raises:
            Misconfigured: a key or a root is missing.
            Transient: the disk is full.
        """
        signer = self._pointer_signer.signer()
        if signer is None:
            return offer

        def draft(serial: int) -> Envelope:
            return draft_offer(offer, self._pointer_signer.fleet, serial, signer.number)

        same = (signer.written, draft(0).signed)
        with self._lock:
            self._offer = self._signed(self._offer, same, signer, draft)
            return offer.model_copy(update={"signed": self._offer[1]})

    def _signed(
        self, last: tuple[object, str] | None, same: object, signer: Signer, draft: Callable[[int], Envelope]
    ) -> tuple[object, str]:
        """The last signature, if it is for the same."""
        if last is not None and last[0] == same:
            return last
        before = int(self._store.get_meta(META) or 0)
        serial = max(before + 1, int(self._clock.wall() - _BEGAN_S))
        self._store.put_meta({META: str(serial)})
        return same, signer.key.signs(draft(serial)).encode().decode()
