"""What the log says of one device: a peer refused at full speed must not fill the disk with its name."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BURST: Final = 20.0
A_SECOND: Final = 0.2
"""Lines that come back in a second: what a device does all the time is said every 5 s."""
MAX_DEVICES: Final = 4096


class Voice:
    """A token bucket for each device; what was left unsaid is counted and told with the next line.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._devices: OrderedDict[str, tuple[float, float, int]] = OrderedDict()

    def unsaid(self, device: str) -> int | None:
        """None: say nothing. Else say it, and how many lines before it were left out."""
        now = self._now()
        left, since, unsaid = self._devices.pop(device, (BURST, now, 0))
        left = min(BURST, left + max(0.0, now - since) * A_SECOND)
        speak = left >= 1.0
        self._devices[device] = (left - 1.0, now, 0) if speak else (left, now, unsaid + 1)
        if len(self._devices) > MAX_DEVICES:
            self._devices.popitem(last=False)
        return unsaid if speak else None
