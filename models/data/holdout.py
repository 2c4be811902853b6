"""Which windows a device holds back from learning, to evaluate models on them. Pure.

Time is cut into stretches of ``holdout.stretch_s``, and a keyed hash of a stretch's number decides: so a
window is on the same side in every round and after a restart, and nothing needs to be stored. Overlapping
windows, and windows of the same minute, are too alike to be on different sides: a window that touches
stretches of both sides is used for neither (docs/adr/0048-holdout-by-time.md).
"""

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

from protocol.tasks.task import Task

_DRAWS: Final = 2.0**64


class WindowUse(IntEnum):
    """What a window is used for."""

    LEARNING = 0
    HOLDOUT = 1
    NEITHER = 2
    """It reaches from a held-back stretch into one to learn from."""


@dataclass(frozen=True, slots=True)
class HoldoutRule:
    """The rule of one task on one device. The default holds nothing back.

    Attributes:
        share: of the stretches that are held back.
        stretch_s: length of a stretch, in stream seconds.
        before_s: how far the stored stream of a window reaches back before its start.
        length_s: of a window.
        key: of the hash.
    """

    share: float = 0.0
    stretch_s: float = 1.0
    before_s: float = 0.0
    length_s: float = 0.0
    key: bytes = b""

    def side(self, start: float | None) -> WindowUse:
        """The side of a window.

        Args:
            start: in stream seconds; None: unknown, as of windows that an old release stored. Those are
                learned from.
        """
        if not self.share or start is None:
            return WindowUse.LEARNING
        first = int((start - self.before_s) // self.stretch_s)
        end = start + self.length_s
        last = int(end // self.stretch_s)
        if last > first and last * self.stretch_s >= end:  # it ends where that stretch begins
            last -= 1
        held = {_draw(self.key, stretch) < self.share for stretch in range(first, last + 1)}
        if len(held) > 1:
            return WindowUse.NEITHER
        return WindowUse.HOLDOUT if held.pop() else WindowUse.LEARNING


def rule_of(task: Task, device: str | None) -> HoldoutRule:
    """The rule of a device; ``device`` None: it holds nothing back.

    The device's name is in the key, so that devices that record the same schedule, or a script that begins
    with the same class, do not all lack the same one.
    """
    if device is None or not task.holdout.share:
        return HoldoutRule()
    window = task.window
    key = hashlib.sha256(f"lichen holdout\0{task.name}\0{device}".encode()).digest()
    before_s = max(0.0, (window.context_s or 0.0) - window.length_s)
    return HoldoutRule(task.holdout.share, task.holdout.stretch_s, before_s, window.length_s, key)


@lru_cache(maxsize=4096)
def _draw(key: bytes, stretch: int) -> float:
    """A number from 0 to 1, the same for the same stretch."""
    content = hashlib.sha256(key + str(stretch).encode()).digest()
    return int.from_bytes(content[:8], "big") / _DRAWS
