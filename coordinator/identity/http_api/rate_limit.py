"""Rate limit of attempts: a token bucket for each address and one for all of them. Pure."""

from collections import OrderedDict
from typing import Final

MAX_PEERS: Final = 4096


class Throttle:
    """Counts attempts.

    Args:
        rate: sustained attempts a second of an address.
        burst: attempts that an address has at once.
        total_rate: the same for all addresses together.
        total_burst: the same for all addresses together.
    """

    def __init__(self, *, rate: float, burst: float, total_rate: float, total_burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._total_rate, self._total_burst = total_rate, total_burst
        self._total = (total_burst, 0.0)
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, peer: str, now: float) -> float:
        """0.0 if the attempt is allowed (and counted), else seconds until the next one is.

        Args:
            peer: from :func:`runtime.text.peer_of`.
            now: monotonic seconds.
        """
        left, since = self._peers.pop(peer, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - since) * self._rate)
        all_left, all_since = self._total
        all_left = min(self._total_burst, all_left + max(0.0, now - all_since) * self._total_rate)
        wait = max((1 - left) / self._rate, (1 - all_left) / self._total_rate, 0.0)
        if wait == 0.0:
            left, all_left = left - 1, all_left - 1
        self._peers[peer] = (left, now)
        self._total = (all_left, now)
        while len(self._peers) > MAX_PEERS:  # forgetting the oldest peers only helps them
            self._peers.popitem(last=False)
        return wait
