"""Chunks that devices asked for and that are not sent yet: who is next, and how many may wait. Pure.

A device may have ``MAX_WAITING`` chunks waiting. Strangers, who are in no roster, may have
``MOST_OF_STRANGERS`` together, for anybody makes up names where there is no authority.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

MAX_WAITING: Final = 128
MOST_OF_STRANGERS: Final = 1024

Chunk = tuple[str, int, int]
"""Digest, index, chunk size."""


class Turns:
    """Devices in the order of their turns; each has one chunk at a turn, in the order that it asked."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Chunk]] = OrderedDict()
        """No queue is empty: how many names ever asked costs nothing."""
        self._strangers: set[str] = set()
        """Those that were strangers when they began to wait."""
        self.of_strangers = 0
        """Chunks that wait for strangers."""

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
        """Let a chunk wait."""
        if self._counts(device, stranger=stranger):
            self._strangers.add(device)
            self.of_strangers += 1
        self._waiting.setdefault(device, deque()).append(chunk)

    def take(self, in_flight: Mapping[str, int], window: int) -> tuple[str, Chunk] | None:
        """The next chunk; None where nobody waits who has fewer than ``window`` in flight.

        Only devices that have so many are passed over, and few can: it costs the same however many wait.
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
        """Whether it is counted as a stranger. Who waits stays what it was: what is counted is taken off."""
        return device in self._strangers if device in self._waiting else stranger
