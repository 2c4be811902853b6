"""What the log says of devices: peers must not fill the disk with lines, under one name or under many."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from runtime.pacing import TokenBucket

BURST: Final = 20.0
A_SECOND: Final = 0.2
"""Lines of one device that come back in a second: what it does all the time is said every 5 s."""
BURST_OF_ALL: Final = 500.0
OF_ALL_A_SECOND: Final = 0.25
"""Lines of all devices together that come back in a second: 21,600 a day."""
LINE_BYTES: Final = 1024
"""Of one line about a device: names, topics and details are cut so that it fits."""
MAX_DEVICES: Final = 4096


class LogRateLimiter:
    """A token bucket for each device and one for all; what was left unsaid is told with the next line.

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
        """None: say nothing. Else say it, and how many lines were left out before it.

        Those are the device's own, and of others whom the bucket of all has silenced.
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
    """What a peer chose, for a line: ASCII, so at most ``2 * most`` bytes of JSON."""
    return ascii(text[:most])[1:-1][:most]


def more(unsaid: int) -> dict[str, int]:
    """The further key of a line of the log: how many lines were left out before it."""
    return {"unsaid": unsaid} if unsaid else {}
