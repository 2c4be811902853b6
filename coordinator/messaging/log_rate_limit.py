"""Rate limit for log lines about devices: peers must not fill the disk, under one name or under many."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from runtime.pacing import TokenBucket

BURST: Final = 20.0
A_SECOND: Final = 0.2
"""Lines of one device refilled in a second: a permanent fault is logged every 5 s."""
BURST_OF_ALL: Final = 500.0
OF_ALL_A_SECOND: Final = 0.25
"""Lines of all devices together refilled in a second: 21,600 a day."""
LINE_BYTES: Final = 1024
"""Limit of one line about a device: names, topics and details are cut to fit."""
MAX_DEVICES: Final = 4096


class LogRateLimiter:
    """A token bucket for each device and one for all; each line reports how many were suppressed before it.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all = TokenBucket(BURST_OF_ALL, OF_ALL_A_SECOND)
        self._devices: OrderedDict[str, TokenBucket] = OrderedDict()
        self._unsaid: dict[str, int] = {}
        self._unsaid_of_all = 0

    def unsaid(self, device: str) -> int | None:
        """Returns None to suppress the line, else how many lines were suppressed since the last one.

        These are the device's own, and those of other devices that the common bucket suppressed.
        """
        now = self._now()
        bucket = self._devices.pop(device, None) or TokenBucket(BURST, A_SECOND)
        self._devices[device] = bucket
        own = bucket.wait_s(now) == 0
        speak = own and self._all.take(now)
        if len(self._devices) > MAX_DEVICES:
            forgotten, _ = self._devices.popitem(last=False)
            self._unsaid_of_all += self._unsaid.pop(forgotten, 0)
        if speak:
            bucket.spend()
            unsaid = self._unsaid.pop(device, 0) + self._unsaid_of_all
            self._unsaid_of_all = 0
            return unsaid
        if own:
            self._unsaid_of_all += 1
        else:
            self._unsaid[device] = self._unsaid.get(device, 0) + 1
        return None


def cut(text: str, most: int) -> str:
    """A peer's text for a line: ASCII, so at most ``2 * most`` bytes of JSON."""
    return ascii(text[:most])[1:-1][:most]


def more(unsaid: int) -> dict[str, int]:
    """The further key of a log line: how many lines were suppressed before it."""
    return {"unsaid": unsaid} if unsaid else {}
