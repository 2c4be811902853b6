"""Queue of requested chunks that are not sent yet, in fair turns and bounded. Pure.

A device may have ``MAX_WAITING`` chunks waiting. Unregistered devices may have ``MOST_OF_STRANGERS``
together, because anybody can invent names if there is no authority.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

MAX_WAITING: Final = 128
MOST_OF_STRANGERS: Final = 1024

Chunk = tuple[str, int, int]
"""Digest, index, chunk size."""


class Turns:
    """Devices in the order of their turns; each gets one chunk a turn, in the order of its requests."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Chunk]] = OrderedDict()
        """No queue is empty, so names without requests take no memory."""
        self._strangers: set[str] = set()
        """Devices that were unregistered when they began to wait."""
        self.of_strangers = 0
        """Chunks that wait for unregistered devices."""

    def __len__(self) -> int:
        return len(self._waiting)

    def has(self, device: str, chunk: Chunk) -> bool:
        """Whether the device waits for it already."""
        return chunk in self._waiting.get(device, ())

    def has_room(self, device: str, *, stranger: bool) -> bool:
        """Whether one more chunk of the device may wait."""
        if len(self._waiting.get(device, ())) >= MAX_WAITING:
            return False
        return not self._counts(device, stranger=stranger) or self.of_strangers < MOST_OF_STRANGERS

    def put(self, device: str, chunk: Chunk, *, stranger: bool) -> None:
        """Add a chunk."""
        if self._counts(device, stranger=stranger):
            self._strangers.add(device)
            self.of_strangers += 1
        self._waiting.setdefault(device, deque()).append(chunk)

    def take(self, in_flight: Mapping[str, int], window: int) -> tuple[str, Chunk] | None:
        """The next chunk; None if every waiting device has ``window`` in flight.

        Only devices with a full window are skipped, and few can be: the cost does not depend on how many
        wait.
        """
        device = next((one for one in self._waiting if in_flight.get(one, 0) < window), None)
        if device is None:
            return None
        queue = self._waiting[device]
        chunk = queue.popleft()
        self._waiting.move_to_end(device)
        self.of_strangers -= device in self._strangers
        if not queue:
            del self._waiting[device]
            self._strangers.discard(device)
        return device, chunk

    def _counts(self, device: str, *, stranger: bool) -> bool:
        """Whether it counts as unregistered; a waiting device stays what it was, for the count's sake."""
        return device in self._strangers if device in self._waiting else stranger
