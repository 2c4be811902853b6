"""Who masks with whom: a regular graph over the devices of one attempt. Pure.

Devices stand on a circle in an order that a salt draws; each is a neighbour of the nearest on both sides
(Bell et al. 2020, section 3.3, as a circulant). Few devices are all neighbours of each other.

The number of neighbours is computed, not a fixed multiple of log n: it is the smallest that is at least
``2 * ceil(log2(n))`` and with which a round rarely fails when the promised share of devices is lost.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MIN_DEVICES: Final = 3
"""Of a sum of two, each knows the other's part."""
MAX_NEIGHBOURS: Final = 512
MAX_LOST: Final = 0.4
"""Largest share of devices that a task may plan to lose: without half, there is no majority."""
FAILURES: Final = 2.0**-10
"""Probability, at most, that an attempt that loses the planned share of devices fails."""
_MARGIN: Final = 20


@dataclass(frozen=True, slots=True)
class GraphSize:
    """The size of an attempt's graph.

    Attributes:
        neighbours: of each device (k).
        threshold: of them, how many must answer to recover one secret of a device (t).
    """

    neighbours: int
    threshold: int


def threshold_of(neighbours: int) -> int:
    """More than half of the neighbours, by a twentieth.

    A device's two secrets are never to be recovered both. Every honest neighbour answers for one of them. So
    a coordinator that tells two stories needs ``2 * threshold - neighbours`` neighbours that answer both:
    with half or less, it needs none.
    """
    return min(neighbours, neighbours // 2 + 1 + neighbours // _MARGIN)


@lru_cache(maxsize=256)
def graph_size(devices: int, max_lost: float) -> GraphSize:
    """Neighbours and threshold in an attempt of ``devices``, of which a share may be lost after its keys.

    Args:
        devices: that have announced keys; at least ``MIN_DEVICES``.
        max_lost: share from 0 to ``MAX_LOST``.

    Raises:
        ValueError: out of range.
    """
    if devices < MIN_DEVICES or not 0 <= max_lost <= MAX_LOST:
        raise ValueError(f"{devices} devices of which {max_lost} may be lost: out of range")
    lost = math.ceil(max_lost * devices)
    for k in range(2 * math.ceil(math.log2(devices)), min(devices - 1, MAX_NEIGHBOURS), 2):
        threshold = threshold_of(k)
        if devices * _fewer(devices - 1, max(0, devices - 1 - lost), k, threshold) <= FAILURES:
            return GraphSize(k, threshold)
    k = min(devices - 1, MAX_NEIGHBOURS)
    return GraphSize(k, threshold_of(k))


def _fewer(others: int, left: int, drawn: int, wanted: int) -> float:
    """Probability that of ``drawn`` among ``others``, fewer than ``wanted`` are among the ``left``."""
    ways = sum(math.comb(left, x) * math.comb(others - left, drawn - x) for x in range(min(wanted, left + 1)))
    return ways / math.comb(others, drawn)


def circle(salt: bytes, devices: Iterable[str]) -> tuple[str, ...]:
    """The devices in the order of a keyed hash of their names."""
    return tuple(sorted(devices, key=lambda device: hashlib.sha256(salt + device.encode()).digest()))


def graph(salt: bytes, devices: Iterable[str], size: GraphSize) -> dict[str, tuple[str, ...]]:
    """The neighbours of each device, sorted by name.

    Args:
        salt: of the attempt.
        devices: each once.
        size: from :func:`graph_size` of their number.
    """
    order = circle(salt, devices)
    count = len(order)
    if size.neighbours >= count - 1:
        names = sorted(order)
        return {device: tuple(name for name in names if name != device) for device in order}
    half = size.neighbours // 2
    steps = [step for step in range(-half, half + 1) if step]
    return {
        device: tuple(sorted(order[(place + step) % count] for step in steps))
        for place, device in enumerate(order)
    }
