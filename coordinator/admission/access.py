"""Access control: decides before decoding whether a device's messages are accepted."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from protocol.errors import Refused
from runtime.clock import Clock
from runtime.metrics import MetricFamily, counter

DenialCheck = Callable[[str], Refused | None]
"""Why a device is denied now; None if it is not. Must be cheap."""
TELL_EVERY_S: Final = 10.0
_MAX_TOLD: Final = 10_000


class AccessControl:
    """Combines several reasons to deny a device.

    Args:
        clock: the time.
        barred: the checks, in order: the first reason counts.
    """

    def __init__(self, clock: Clock, barred: Sequence[DenialCheck]) -> None:
        self._clock = clock
        self._barred = tuple(barred)
        self._told: dict[str, float] = {}
        self.turned_away = 0
        """Messages that were dropped unread."""

    def denial(self, device: str) -> Refused | None:
        """Why this device is denied now; None if it is not."""
        for ask in self._barred:
            refused = ask(device)
            if refused is not None:
                return refused
        return None

    def may_reply(self, device: str) -> bool:
        """Whether to answer it: once in ``TELL_EVERY_S``, because an answer costs more than a message."""
        now = self._clock.now()
        if now - self._told.get(device, -TELL_EVERY_S) < TELL_EVERY_S:
            self.turned_away += 1
            return False
        if len(self._told) >= _MAX_TOLD:
            self._told.clear()
        self._told[device] = now
        return True

    def metrics(self) -> Iterable[MetricFamily]:
        """Counts of dropped messages."""
        yield counter("lichen_messages_turned_away", "Messages of barred devices", self.turned_away)
